#include "collectives/admission/rate_limit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"

namespace tidegate {
namespace {

constexpr std::uint64_t kLeastBurst = std::uint64_t{1} << 20;
constexpr std::uint64_t kBurstsPerSecond = 100;
constexpr Nanoseconds kNap = std::chrono::milliseconds(1);

double NanosecondsPerByte(std::uint64_t bytes_per_second) {
  TIDEGATE_CHECK(bytes_per_second > 0);
  return 1e9 / static_cast<double>(bytes_per_second);
}

/// Rounded up: never more than the rate.
std::int64_t Duration(std::uint64_t bytes, double nanoseconds_per_byte) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(bytes) * nanoseconds_per_byte));
}

}  // namespace

RateLimit::RateLimit(std::uint64_t bytes_per_second, std::uint64_t burst_bytes)
    : nanoseconds_per_byte_(NanosecondsPerByte(bytes_per_second)),
      burst_ns_(Duration(burst_bytes, nanoseconds_per_byte_)),
      nap_ns_(std::min(kNap.count(), burst_ns_ / 2)),
      full_at_(std::numeric_limits<std::int64_t>::min()) {
  TIDEGATE_CHECK(burst_bytes > 0);
}

std::uint64_t RateLimit::DefaultBurst(std::uint64_t bytes_per_second) {
  return std::max(kLeastBurst, bytes_per_second / kBurstsPerSecond);
}

TimePoint RateLimit::Book(std::uint64_t bytes, TimePoint now) {
  const std::int64_t at = now.time_since_epoch().count();
  const std::int64_t takes = Duration(bytes, nanoseconds_per_byte_);
  std::int64_t full_at = full_at_.load(std::memory_order_relaxed);
  // The tokens there are, as the time in which they came, are burst_ns_ less what is missing.
  std::int64_t missing = 0;
  do {
    missing = full_at > at ? full_at - at : 0;
  } while (
      !full_at_.compare_exchange_weak(full_at, at + missing + takes, std::memory_order_relaxed));
  const std::int64_t wanted = std::min(takes, burst_ns_);
  const std::int64_t too_early = missing - (burst_ns_ - wanted);
  if (too_early <= 0) return now;
  return now + Nanoseconds(too_early + std::max<std::int64_t>(nap_ns_ - wanted, 0));
}

}  // namespace tidegate
