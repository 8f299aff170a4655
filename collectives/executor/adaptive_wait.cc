#include "collectives/executor/adaptive_wait.h"

#include <sched.h>

#include <algorithm>

#include "common/pause.h"

namespace tidegate {
namespace {

constexpr int kSpinsAlone = 1000;
constexpr int kSpinsCrowded = 10;
/// Another rank's turn at a chunk takes less, a stranger's time slice more.
constexpr Nanoseconds kSlowYield = std::chrono::milliseconds(1);
/// Longest time spent yielding in one wait: an idle core would otherwise burn for ever.
constexpr Nanoseconds kYieldBudget = std::chrono::milliseconds(1);
/// The same for the ranks of one core together, each of which takes its part of it while it waits
/// for a rank that has to come to the core.
constexpr Nanoseconds kCrowdedYieldBudget = std::chrono::microseconds(200);
/// A slow yield costs some 3 ms, so probing every 128 ms costs 2%.
constexpr Nanoseconds kFirstRest = std::chrono::milliseconds(4);
constexpr Nanoseconds kLastRest = std::chrono::milliseconds(128);
constexpr int kFastYieldsToTrust = 32;

}  // namespace

WaitLimits LimitsOfRanks(int ranks_per_cpu) {
  if (ranks_per_cpu <= 1) return {kSpinsAlone, kYieldBudget};
  return {kSpinsCrowded, kCrowdedYieldBudget / ranks_per_cpu};
}

WaitLimits LimitsOfProgressThread() { return {kSpinsCrowded, kYieldBudget}; }

AdaptiveWait::AdaptiveWait(const Clock& clock, WaitLimits limits)
    : clock_(clock), limits_(limits), rest_(kFirstRest) {}

void AdaptiveWait::Reset() {
  spins_ = 0;
  yielding_ = false;
  gave_up_ = false;
}

bool AdaptiveWait::PollAgain() {
  if (gave_up_) return false;
  if (spins_ < limits_.spins) {
    ++spins_;
    Pause();
    return true;
  }
  const TimePoint before = clock_.Now();
  if (!yielding_) {
    yielding_ = before >= rest_until_;
    yield_start_ = before;
  }
  if (!yielding_ || before - yield_start_ > limits_.yielding) {
    gave_up_ = true;
    return false;
  }
  sched_yield();
  const TimePoint after = clock_.Now();
  if (after - before >= kSlowYield) {
    rest_until_ = after + rest_;
    rest_ = std::min(rest_ * 2, kLastRest);
    fast_yields_ = 0;
    gave_up_ = true;
  } else if (++fast_yields_ == kFastYieldsToTrust) {
    rest_ = std::max(rest_ / 2, kFirstRest);
    fast_yields_ = 0;
  }
  return true;
}

}  // namespace tidegate
