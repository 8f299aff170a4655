#include "collectives/admission/admission.h"

#include <cstdio>

namespace tidegate {
namespace {

std::string OrNull(std::optional<std::uint64_t> value) {
  return value ? std::to_string(*value) : "null";
}

}  // namespace

Admission& Admission::Process() {
  static auto& admission = *new Admission;  // Leaked: used until the very end.
  return admission;
}

void Admission::SetLimits(const AdmissionLimits& limits) {
  const std::lock_guard lock(mutex_);
  Set(limits);
}

void Admission::SetDefaults(const AdmissionLimits& limits) {
  const std::lock_guard lock(mutex_);
  if (version() == 0) Set(limits);
}

/// REQUIRES: mutex_ is held.
void Admission::Set(const AdmissionLimits& limits) {
  limits_ = limits;
  if (limits_.rate && !limits_.burst) limits_.burst = RateLimit::DefaultBurst(*limits_.rate);
  rate_ = limits_.rate ? std::make_shared<RateLimit>(*limits_.rate, *limits_.burst) : nullptr;
  version_.fetch_add(1, std::memory_order_relaxed);
}

AdmissionLimits Admission::limits() const {
  const std::lock_guard lock(mutex_);
  return limits_;
}

std::shared_ptr<RateLimit> Admission::rate() const {
  const std::lock_guard lock(mutex_);
  return rate_;
}

void Admission::CountWait(Nanoseconds held) {
  waits_.fetch_add(1, std::memory_order_relaxed);
  held_ns_.fetch_add(held.count(), std::memory_order_relaxed);
}

std::string Admission::ToJson() const {
  const AdmissionLimits now = limits();
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%.9f",
                static_cast<double>(held_ns_.load(std::memory_order_relaxed)) * 1e-9);
  return R"({"waits":)" + std::to_string(waits_.load(std::memory_order_relaxed)) +
         R"(,"wait_seconds":)" + seconds + R"(,"limits":{"rate":)" + OrNull(now.rate) +
         R"(,"burst":)" + OrNull(now.burst) + "}}";
}

}  // namespace tidegate
