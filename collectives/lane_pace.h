#pragma once

#include <memory>

#include "collectives/admission/admission.h"
#include "collectives/executor/pace.h"

namespace tidegate {

/// The pace of the all-gathers of one lane: as an Admission's rate has it. One thread at a time.
class LanePace final : public Pace {
 public:
  LanePace(Admission& admission, const Clock& clock) : admission_(admission), clock_(clock) {}

  /// For an operation that is about to start.
  Pace* ForNext() {
    until_ = held_since_ = kNotHeld;
    return this;
  }

  TimePoint Admit(std::size_t bytes) override;

 private:
  void Update();

  Admission& admission_;
  const Clock& clock_;
  std::uint64_t version_ = 0;  ///< Of rate_.
  std::shared_ptr<RateLimit> rate_;
  TimePoint until_ = kNotHeld;  ///< When what has been booked may pass.
  TimePoint held_since_ = kNotHeld;
};

}  // namespace tidegate
