#include "collectives/lane_pace.h"

#include <utility>

namespace tidegate {

void LanePace::Update() {
  Admission& admission = group_.current();
  const std::uint64_t version = admission.version();
  if (&admission == admission_ && version == version_) return;
  admission_ = &admission;
  version_ = version;
  rate_ = admission.rate(link_);
  until_ = kNotHeld;  // Booked with another rate.
}

TimePoint LanePace::Admit(std::size_t bytes) {
  Update();
  if (rate_ == nullptr && held_since_ == kNotHeld) return kNotHeld;
  const TimePoint now = clock_.Now();
  if (rate_ != nullptr && until_ == kNotHeld) until_ = rate_->Book(bytes, now);
  if (until_ > now) {
    if (held_since_ == kNotHeld) held_since_ = now;
    return until_;
  }
  until_ = kNotHeld;
  if (held_since_ != kNotHeld) admission_->CountWait(now - std::exchange(held_since_, kNotHeld));
  return kNotHeld;
}

}  // namespace tidegate
