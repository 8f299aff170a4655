#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "collectives/admission/gate.h"
#include "collectives/admission/limits.h"
#include "collectives/admission/rate_limit.h"
#include "common/clock.h"

namespace tidegate {

/// The limits in force, and what came of them. Thread-safe.
class Admission {
 public:
  explicit Admission(const Clock& clock) : gate_(std::make_shared<Gate>(clock)) {}

  /// That of all groups of this process that have none of their own.
  static Admission& Process();

  /// From now on; the rate also for operations that are in the middle.
  void SetLimits(const AdmissionLimits& limits);
  /// The same, unless somebody has set any.
  void SetDefaults(const AdmissionLimits& limits);
  AdmissionLimits limits() const;

  /// Changes whenever rate() does, from 0. One relaxed load.
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  /// Of reading over such links. Null: no limit.
  std::shared_ptr<RateLimit> rate(LinkClass link) const;
  const std::shared_ptr<Gate>& gate() const { return gate_; }
  Overflow overflow() const { return overflow_.load(std::memory_order_relaxed); }

  /// Counts that something was held to the rate for so long.
  void CountWait(Nanoseconds held);

  /// {"high_water_ops":n,"high_water_bytes":b,"waits":n,"wait_seconds":s,"promotions":n,"limits":
  /// {"max_ops":n,"max_bytes":b,"wait":"queue","rate":r,"burst":b,"links":"all"}}; a limit that is
  /// off is null.
  std::string ToJson() const;

 private:
  void Set(const AdmissionLimits& limits);

  const std::shared_ptr<Gate> gate_;
  std::atomic<Overflow> overflow_{Overflow::kQueue};
  mutable std::mutex mutex_;
  AdmissionLimits limits_;  // Guarded, as the next.
  std::shared_ptr<RateLimit> rate_;
  std::atomic<std::uint64_t> version_{0};
  std::atomic<std::uint64_t> waits_{0};
  std::atomic<std::int64_t> held_ns_{0};
};

/// That of one group: the process's until the group gets limits of its own, which then hold
/// instead. Thread-safe.
class GroupAdmission {
 public:
  /// Costs a load.
  Admission& current() const {
    Admission* const own = own_.load(std::memory_order_acquire);
    return own == nullptr ? Admission::Process() : *own;
  }
  /// Null while the group has none of its own. Valid as long as this.
  const Admission* own() const { return own_.load(std::memory_order_acquire); }
  void SetLimits(const AdmissionLimits& limits);

  /// A ticket for an operation with outputs of so many bytes, the next of the group's one line;
  /// null where no gate counts it.
  std::shared_ptr<Ticket> Come(std::uint64_t bytes, bool urgent);

 private:
  /// Of the process's gate and of the group's own.
  const std::shared_ptr<GateLine> line_of_process_ = std::make_shared<GateLine>();
  const std::shared_ptr<GateLine> own_line_ = std::make_shared<GateLine>();
  std::mutex mutex_;
  std::unique_ptr<Admission> owned_;  // Guarded; never replaced.
  std::atomic<Admission*> own_{nullptr};
};

}  // namespace tidegate
