#pragma once

#include <chrono>

#include "common/clock.h"

namespace tidegate::testing {

/// Stands still but for Advance. One thread at a time.
class ManualClock final : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  void Advance(Nanoseconds by) { now_ += by; }

 private:
  TimePoint now_{std::chrono::hours(1)};
};

}  // namespace tidegate::testing
