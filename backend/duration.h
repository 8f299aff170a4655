#pragma once

#include <chrono>

#include "common/clock.h"

namespace tidegate {

/// c10d counts in milliseconds, of which 300 years' worth, a common way to say "no limit", overflow
/// a count of nanoseconds: those become the longest one.
inline Nanoseconds ToNanoseconds(std::chrono::milliseconds timeout) {
  constexpr auto kLongest =
      std::chrono::duration_cast<std::chrono::milliseconds>(Nanoseconds::max());
  return timeout > kLongest ? Nanoseconds::max() : Nanoseconds(timeout);
}

}  // namespace tidegate
