#include "collectives/admission/rate_limit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"

namespace tidegate {
namespace {

constexpr std::uint64_t kLeastBurst = std::uint64_t{256} << 10;
constexpr std::uint64_t kBurstsPerSecond = 100;
constexpr Nanoseconds kNap = std::chrono::milliseconds(1);

/// Rounded up: never more than the rate.
std::int64_t Duration(std::uint64_t bytes, double nanoseconds_per_byte) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(bytes) * nanoseconds_per_byte));
}

}  // namespace

RateLimit::RateLimit(std::uint64_t bytes_per_second, std::uint64_t burst_bytes)
    : nanoseconds_per_byte_(1e9 / static_cast<double>(bytes_per_second)),
      burst_ns_(Duration(burst_bytes, nanoseconds_per_byte_)),
      nap_ns_(std::min(kNap.count(), burst_ns_ / 2)),
      full_at_(std::numeric_limits<std::int64_t>::min()) {
  TIDEGATE_CHECK(bytes_per_second > 0 && burst_bytes > 0);
}

std::uint64_t RateLimit::DefaultBurst(std::uint64_t bytes_per_second) {
  return std::max(kLeastBurst, bytes_per_second / kBurstsPerSecond);
}

TimePoint RateLimit::Admit(std::uint64_t bytes, TimePoint now) {
  const std::int64_t at = now.time_since_epoch().count();
  const std::int64_t takes = Duration(bytes, nanoseconds_per_byte_);
  std::int64_t full_at = full_at_.load(std::memory_order_relaxed);
  for (;;) {
    // The tokens there are, as the time in which they came, are burst_ns_ less what is missing.
    const std::int64_t missing = full_at > at ? full_at - at : 0;
    const std::int64_t wanted = std::min(takes, burst_ns_);
    const std::int64_t too_much = missing - (burst_ns_ - wanted);
    if (too_much > 0)
      return now + Nanoseconds(too_much + std::max<std::int64_t>(nap_ns_ - wanted, 0));
    if (full_at_.compare_exchange_weak(full_at, at + missing + takes, std::memory_order_relaxed))
      return now;
  }
}

}  // namespace tidegate
