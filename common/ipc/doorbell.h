#pragma once

#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace tidegate {

/// A process's single point of wake-up, placed in shared memory so that any peer can ring it.
/// Trivial layout: a zero-filled page is a valid Doorbell.
///
/// Protocol of a waiter: `Arm()`, check the condition once more, then `Sleep()` or `Disarm()`.
/// Protocol of a signaller: make the condition true, then `Ring()`. The sequentially consistent
/// fences in Arm and Ring guarantee that either the waiter sees the condition or the signaller sees
/// the waiter. Thread-safe and process-safe.
class Doorbell {
 public:
  /// Announces a sleeper and returns the ticket to sleep on.
  std::uint32_t Arm();
  /// Sleeps until rung after `ticket` was drawn, or `deadline`; disarms. May return early.
  void Sleep(std::uint32_t ticket, TimePoint deadline);
  void Disarm();

  /// Wakes all sleepers; costs one fence and one load when there is none.
  void Ring();

 private:
  std::atomic<std::uint32_t> rings_;
  std::atomic<std::uint32_t> sleepers_;
};

}  // namespace tidegate
