#pragma once

#include <memory>

#include "collectives/admission/admission.h"
#include "collectives/executor/pace.h"

namespace tidegate {

/// The pace of the all-gathers of one lane, which read over links of one class: as the rate of the
/// group's limits has it. One thread at a time.
class LanePace final : public Pace {
 public:
  LanePace(const GroupAdmission& admission, LinkClass link, const Clock& clock)
      : group_(admission), link_(link), clock_(clock) {}

  /// For an operation that is about to start.
  Pace* ForNext() {
    Update();
    until_ = held_since_ = kNotHeld;
    return this;
  }

  TimePoint Admit(std::size_t bytes) override;
  /// Whether there was a rate when it was asked last.
  bool has_rate() const { return rate_ != nullptr; }

 private:
  void Update();

  const GroupAdmission& group_;
  const LinkClass link_;
  const Clock& clock_;
  Admission* admission_ = nullptr;  ///< Whose rate rate_ is.
  std::uint64_t version_ = 0;       ///< Of rate_.
  std::shared_ptr<RateLimit> rate_;
  TimePoint until_ = kNotHeld;  ///< When what has been booked may pass.
  TimePoint held_since_ = kNotHeld;
};

}  // namespace tidegate
