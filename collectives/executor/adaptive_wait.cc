#include "collectives/executor/adaptive_wait.h"

#include <sched.h>

#include <algorithm>

namespace tidegate {
namespace {

constexpr int kSpinsAlone = 1000;
constexpr int kSpinsOversubscribed = 50;
constexpr Nanoseconds kSlowYield = std::chrono::microseconds(100);
/// Longest time spent yielding in one wait: an idle core would otherwise burn for ever.
constexpr Nanoseconds kYieldBudget = std::chrono::microseconds(500);
constexpr std::uint32_t kFirstSkip = 64;
constexpr std::uint32_t kLastSkip = 4096;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

AdaptiveWait::AdaptiveWait(const Clock& clock, bool oversubscribed)
    : clock_(clock),
      spin_limit_(oversubscribed ? kSpinsOversubscribed : kSpinsAlone),
      next_skip_(kFirstSkip) {}

void AdaptiveWait::Reset() {
  spins_ = 0;
  yielding_ = false;
  gave_up_ = false;
}

bool AdaptiveWait::PollAgain() {
  if (gave_up_) return false;
  if (spins_ < spin_limit_) {
    ++spins_;
    Pause();
    return true;
  }
  if (skip_yields_ > 0) {
    --skip_yields_;
    gave_up_ = true;
    return false;
  }
  const TimePoint before = clock_.Now();
  if (!yielding_) {
    yielding_ = true;
    yield_start_ = before;
  }
  if (before - yield_start_ > kYieldBudget) {
    gave_up_ = true;
    return false;
  }
  sched_yield();
  if (clock_.Now() - before >= kSlowYield) {
    skip_yields_ = next_skip_;
    next_skip_ = std::min(next_skip_ * 2, kLastSkip);
  } else {
    next_skip_ = kFirstSkip;
  }
  return true;
}

}  // namespace tidegate
