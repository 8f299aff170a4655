#pragma once

#include <chrono>

namespace tidegate {

using Nanoseconds = std::chrono::nanoseconds;
/// A point on a monotonic clock, as time since that clock's own origin.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Nanoseconds>;

/// Source of monotonic time, injected so that tests decide what time it is. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

/// The process-wide steady clock; never destroyed.
const Clock& SteadyClock();

inline constexpr TimePoint kNoDeadline = TimePoint::max();

/// `start + timeout`, or kNoDeadline where `timeout` is zero, negative or would overflow.
TimePoint DeadlineAfter(TimePoint start, Nanoseconds timeout);

}  // namespace tidegate
