#include "common/clock.h"

namespace tidegate {
namespace {

class SystemSteadyClock final : public Clock {
 public:
  TimePoint Now() const override {
    return std::chrono::time_point_cast<Nanoseconds>(std::chrono::steady_clock::now());
  }
};

}  // namespace

const Clock& SteadyClock() {
  // Leaked on purpose: threads that outlive static destruction still read the time.
  static const Clock& clock = *new SystemSteadyClock;
  return clock;
}

TimePoint DeadlineAfter(TimePoint start, Nanoseconds timeout) {
  if (timeout <= Nanoseconds::zero() || start > kNoDeadline - timeout) return kNoDeadline;
  return start + timeout;
}

}  // namespace tidegate
