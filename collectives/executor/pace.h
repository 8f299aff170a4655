#pragma once

#include <cstddef>

#include "common/clock.h"

namespace tidegate {

/// Holds back what an operation reads from its peers. One thread at a time.
class Pace {
 public:
  virtual ~Pace() = default;
  /// Whether `bytes` may be read at once: kNotHeld, and they count as read. Else when to ask again.
  virtual TimePoint Admit(std::size_t bytes) = 0;
};

inline constexpr TimePoint kNotHeld = TimePoint::min();

}  // namespace tidegate
