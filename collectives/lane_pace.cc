#include "collectives/lane_pace.h"

#include <utility>

namespace tidegate {

void LanePace::Update() {
  const std::uint64_t version = admission_.version();
  if (version == version_) return;
  version_ = version;
  rate_ = admission_.rate();
}

Pace* LanePace::ForNext() {
  held_since_ = kNotHeld;
  Update();
  return rate_ == nullptr ? nullptr : this;
}

TimePoint LanePace::Admit(std::size_t bytes) {
  Update();
  const TimePoint now = clock_.Now();
  const TimePoint when = rate_ == nullptr ? now : rate_->Admit(bytes, now);
  if (when > now) {
    if (held_since_ == kNotHeld) held_since_ = now;
    return when;
  }
  if (held_since_ != kNotHeld) admission_.CountWait(now - std::exchange(held_since_, kNotHeld));
  return kNotHeld;
}

}  // namespace tidegate
