#pragma once

#include "common/clock.h"

namespace tidegate {

/// How long a wait may take of a processor before the thread sleeps.
struct WaitLimits {
  int spins = 0;           ///< Polls with a pause between them.
  Nanoseconds yielding{};  ///< Then polls with a yield between them, for this long.
};

/// For the ranks of a group of which so many share a processor; 1: each has its own, and may wait
/// on it at leisure. More take it from each other by spinning, and by yielding too.
WaitLimits LimitsOfRanks(int ranks_per_cpu);

/// For a thread beside the one that calls collectives.
WaitLimits LimitsOfProgressThread();

/// How a thread passes the time between two polls: a short spin while the other side is probably
/// running on another core, then yields while those return quickly, then sleep. A yield that takes
/// long means that someone else owns the core and that yielding again would cost time slices: for
/// a while, longer each time, waits go straight to sleep before yielding is tried again. Measured
/// in time and not in waits, so that a short disturbance is soon forgotten whatever waits cost.
///
/// Constants: docs/thread_model.md. One thread; one object per thread of control that waits.
class AdaptiveWait {
 public:
  AdaptiveWait(const Clock& clock, WaitLimits limits);
  void set_limits(WaitLimits limits) { limits_ = limits; }

  /// Called after something was achieved: the next wait starts over.
  void Reset();

  /// Called after a poll in vain; spins or yields. False: better sleep now.
  bool PollAgain();

 private:
  const Clock& clock_;
  WaitLimits limits_;
  int spins_ = 0;
  TimePoint yield_start_{};
  bool yielding_ = false;
  bool gave_up_ = false;
  TimePoint rest_until_{};
  Nanoseconds rest_;     ///< After the next slow yield.
  int fast_yields_ = 0;  ///< Since the last slow one or the last change of rest_.
};

}  // namespace tidegate
