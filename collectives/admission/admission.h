#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "collectives/admission/rate_limit.h"
#include "common/clock.h"

namespace tidegate {

/// What all-gathers of a process may do, together; nothing set: anything.
struct AdmissionLimits {
  /// Bytes a second that may be read from peers of the node.
  std::optional<std::uint64_t> rate;
  /// Bytes that may be read at once after a pause; else RateLimit::DefaultBurst.
  std::optional<std::uint64_t> burst;
};

/// The limits in force, and what came of them. Thread-safe.
class Admission {
 public:
  /// That of all groups of this process.
  static Admission& Process();

  /// From now on, also for operations that are in the middle.
  void SetLimits(const AdmissionLimits& limits);
  /// The same, unless somebody has set any.
  void SetDefaults(const AdmissionLimits& limits);
  AdmissionLimits limits() const;

  /// Changes whenever rate() does, from 0. One relaxed load.
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  /// Null: no limit.
  std::shared_ptr<RateLimit> rate() const;

  /// Counts that something was held for so long.
  void CountWait(Nanoseconds held);

  /// {"waits":n,"wait_seconds":s,"limits":{"rate":r,"burst":b}}; a limit that is off is null.
  std::string ToJson() const;

 private:
  void Set(const AdmissionLimits& limits);

  mutable std::mutex mutex_;
  AdmissionLimits limits_;  // Guarded, as the next.
  std::shared_ptr<RateLimit> rate_;
  std::atomic<std::uint64_t> version_{0};
  std::atomic<std::uint64_t> waits_{0};
  std::atomic<std::int64_t> held_ns_{0};
};

}  // namespace tidegate
