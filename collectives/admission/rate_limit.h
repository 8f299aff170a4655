#pragma once

#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace tidegate {

/// A token bucket: lets `rate` bytes a second through, and `burst` bytes at once after a pause. A
/// piece of more than `burst` bytes passes alone, once the bucket is full, so that nothing waits
/// for ever. Thread-safe, without locks: pieces of several threads share the rate in the order in
/// which they come.
class RateLimit {
 public:
  /// REQUIRES: both are positive. The bucket begins full.
  RateLimit(std::uint64_t bytes_per_second, std::uint64_t burst_bytes);

  /// The burst of a rate that came without one: what passes in 10 ms, so that a thread that wakes
  /// up late catches up, and at least 256 KiB, a chunk.
  static std::uint64_t DefaultBurst(std::uint64_t bytes_per_second);

  /// Takes `bytes` from the bucket at `now` and returns `now`; or takes nothing and returns when to
  /// ask again, which is later: when `bytes` and what comes in a millisecond will be there, so that
  /// sleeps are few. Who asks before may find enough.
  TimePoint Admit(std::uint64_t bytes, TimePoint now);

 private:
  const double nanoseconds_per_byte_;
  const std::int64_t burst_ns_;  ///< In which the bucket fills.
  const std::int64_t nap_ns_;    ///< Of tokens that there are to be when a sleep ends, at least.
  /// Nanoseconds since the origin of the clock: when the bucket will be full.
  std::atomic<std::int64_t> full_at_;
};

}  // namespace tidegate
