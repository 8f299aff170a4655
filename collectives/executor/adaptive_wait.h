#pragma once

#include <cstdint>

#include "common/clock.h"

namespace tidegate {

/// How a thread passes the time between two polls: a short spin while the other side is probably
/// running on another core, then yields while those return quickly, then sleep. A yield that takes
/// long means that someone else owns the core and that yielding again would cost time slices: the
/// next waits go straight to sleep, more of them each time, before yielding is tried again.
///
/// Constants: docs/thread_model.md. One thread; one object per thread of control that waits.
class AdaptiveWait {
 public:
  /// `oversubscribed`: more ranks than cores, where spinning takes the core from the peer.
  AdaptiveWait(const Clock& clock, bool oversubscribed);

  /// Called after something was achieved: the next wait starts over.
  void Reset();

  /// Called after a poll in vain; spins or yields. False: better sleep now.
  bool PollAgain();

 private:
  const Clock& clock_;
  const int spin_limit_;
  int spins_ = 0;
  TimePoint yield_start_{};
  bool yielding_ = false;
  bool gave_up_ = false;
  std::uint32_t skip_yields_ = 0;
  std::uint32_t next_skip_;
};

}  // namespace tidegate
