#include "collectives/admission/admission.h"

#include <cstdio>
#include <optional>

#include "common/recycled.h"

namespace tidegate {
namespace {

std::string OrNull(std::optional<std::uint64_t> value) {
  return value ? std::to_string(*value) : "null";
}

const char* NameOf(Overflow overflow) { return overflow == Overflow::kQueue ? "queue" : "block"; }

const char* NameOf(CountedLinks links) {
  switch (links) {
    case CountedLinks::kAll:
      return "all";
    case CountedLinks::kNode:
      return "node";
    case CountedLinks::kNet:
      return "net";
  }
  return "all";
}

std::string ToJson(const AdmissionLimits& limits) {
  return R"({"max_ops":)" + OrNull(limits.in_flight.ops) + R"(,"max_bytes":)" +
         OrNull(limits.in_flight.bytes) + R"(,"wait":")" + NameOf(limits.overflow) +
         R"(","rate":)" + OrNull(limits.rate) + R"(,"burst":)" + OrNull(limits.burst) +
         R"(,"links":")" + NameOf(limits.links) + "\"}";
}

}  // namespace

Admission& Admission::Process() {
  static auto& admission = *new Admission(SteadyClock());  // Leaked: used until the very end.
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
  overflow_.store(limits_.overflow, std::memory_order_relaxed);
  gate_->SetBudget(limits_.in_flight);
  version_.fetch_add(1, std::memory_order_relaxed);
}

AdmissionLimits Admission::limits() const {
  const std::lock_guard lock(mutex_);
  return limits_;
}

std::shared_ptr<RateLimit> Admission::rate(LinkClass link) const {
  const std::lock_guard lock(mutex_);
  return Counts(limits_.links, link) ? rate_ : nullptr;
}

void Admission::CountWait(Nanoseconds held) {
  waits_.fetch_add(1, std::memory_order_relaxed);
  held_ns_.fetch_add(held.count(), std::memory_order_relaxed);
}

std::string Admission::ToJson() const {
  const Gate::Counters gate = gate_->counters();
  const std::uint64_t waits = gate.waits + waits_.load(std::memory_order_relaxed);
  const std::int64_t held = gate.held.count() + held_ns_.load(std::memory_order_relaxed);
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%.9f", static_cast<double>(held) * 1e-9);
  return R"({"high_water_ops":)" + std::to_string(gate.high_water_ops) + R"(,"high_water_bytes":)" +
         std::to_string(gate.high_water_bytes) + R"(,"waits":)" + std::to_string(waits) +
         R"(,"wait_seconds":)" + seconds + R"(,"promotions":)" + std::to_string(gate.promotions) +
         R"(,"limits":)" + tidegate::ToJson(limits()) + "}";
}

std::shared_ptr<Ticket> GroupAdmission::Come(std::uint64_t bytes, bool urgent) {
  const Admission& admission = current();
  if (!admission.gate()->on()) return nullptr;
  const bool is_own = &admission == own();
  return MakeRecycled<Ticket>(admission.gate(), is_own ? own_line_ : line_of_process_, bytes,
                              urgent);
}

void GroupAdmission::SetLimits(const AdmissionLimits& limits) {
  const std::lock_guard lock(mutex_);
  if (owned_ == nullptr) owned_ = std::make_unique<Admission>(SteadyClock());
  owned_->SetLimits(limits);
  own_.store(owned_.get(), std::memory_order_release);
}

}  // namespace tidegate
