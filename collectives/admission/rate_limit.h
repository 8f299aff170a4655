#pragma once

#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace tidegate {

/// A token bucket: lets `rate` bytes a second through, and `burst` bytes at once after a pause. A
/// piece of more than `burst` bytes passes alone, when the bucket is full. Pieces pass in the order
/// in which they are booked, so that large ones do not starve behind small ones. Thread-safe,
/// without locks.
class RateLimit {
 public:
  /// REQUIRES: both are positive. The bucket begins full.
  RateLimit(std::uint64_t bytes_per_second, std::uint64_t burst_bytes);

  /// The burst of a rate that came without one: what passes in 10 ms, so that a thread that wakes
  /// up late catches up, and at least 1 MiB, two of the longest chunks there are by default.
  static std::uint64_t DefaultBurst(std::uint64_t bytes_per_second);

  /// Takes `bytes` from the bucket and returns when they may pass: `now` if they are there. Else a
  /// little later than they will be, so that at least what comes in a millisecond is there then:
  /// sleeps are few, and waking up late costs no rate.
  TimePoint Book(std::uint64_t bytes, TimePoint now);

 private:
  const double nanoseconds_per_byte_;
  const std::int64_t burst_ns_;  ///< In which the bucket fills.
  const std::int64_t nap_ns_;    ///< Of tokens that there are to be when a sleep ends, at least.
  /// Nanoseconds since the origin of the clock: when the bucket will be full.
  std::atomic<std::int64_t> full_at_;
};

}  // namespace tidegate
