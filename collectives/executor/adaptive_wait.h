#pragma once

#include "common/clock.h"

namespace tidegate {

/// How a thread passes the time between two polls: a short spin while the other side is probably
/// running on another core, then yields while those return quickly, then sleep. A yield that takes
/// long means that someone else owns the core and that yielding again would cost time slices: for
/// a while, longer each time, waits go straight to sleep before yielding is tried again. Measured
/// in time and not in waits, so that a short disturbance is soon forgotten whatever waits cost.
///
/// Constants: docs/thread_model.md. One thread; one object per thread of control that waits.
class AdaptiveWait {
 public:
  /// `oversubscribed`: more ranks than cores, where spinning takes the core from the peer.
  AdaptiveWait(const Clock& clock, bool oversubscribed);
  void set_oversubscribed(bool oversubscribed);

  /// Called after something was achieved: the next wait starts over.
  void Reset();

  /// Called after a poll in vain; spins or yields. False: better sleep now.
  bool PollAgain();

 private:
  const Clock& clock_;
  int spin_limit_ = 0;
  int spins_ = 0;
  TimePoint yield_start_{};
  bool yielding_ = false;
  bool gave_up_ = false;
  TimePoint rest_until_{};
  Nanoseconds rest_;     ///< After the next slow yield.
  int fast_yields_ = 0;  ///< Since the last slow one or the last change of rest_.
};

}  // namespace tidegate
