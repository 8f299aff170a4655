#pragma once

#include <chrono>
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace tidegate {

/// c10d counts in milliseconds, of which 300 years' worth, a common way to say "no limit", overflow
/// a count of nanoseconds: those become the longest one.
inline Nanoseconds ToNanoseconds(std::chrono::milliseconds timeout) {
  constexpr auto kLongest =
      std::chrono::duration_cast<std::chrono::milliseconds>(Nanoseconds::max());
  return timeout > kLongest ? Nanoseconds::max() : Nanoseconds(timeout);
}

/// Refuses what would mean "no limit" further down. Not for c10d::kUnsetTimeout.
inline Status CheckTimeout(std::chrono::milliseconds timeout) {
  if (timeout.count() > 0) return Status();
  return Status(StatusCode::kInvalidArgument,
                "the timeout is " + std::to_string(timeout.count()) +
                    " ms, but must be positive; for one that never ends an operation too early, "
                    "give a long one (timedelta(hours=24))");
}

}  // namespace tidegate
