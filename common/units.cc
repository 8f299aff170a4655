#include "common/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <system_error>

namespace tidegate {
namespace {

Status Malformed(std::string_view text, std::string_view why) {
  return Status(StatusCode::kInvalidArgument, "\"" + std::string(text) + "\" " + std::string(why));
}

/// Splits "1.5 GiB" into "1.5" and "GiB". The number is empty unless it starts with a digit.
struct NumberAndUnit {
  std::string_view number;
  std::string_view unit;
};

NumberAndUnit Split(std::string_view text) {
  std::size_t end = 0;
  const auto in_number = [](char c, bool first) {
    return (c >= '0' && c <= '9') || (c == '.' && !first);
  };
  while (end < text.size() && in_number(text[end], end == 0)) ++end;
  std::string_view unit = text.substr(end);
  if (end > 0 && unit.starts_with(' ')) unit.remove_prefix(1);
  return {text.substr(0, end), unit};
}

/// Parses all of `digits`; nullopt for anything left over ("1.5.2") and for overflow.
template <typename T>
std::optional<T> ParseNumber(std::string_view digits) {
  T value{};
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

constexpr std::string_view kByteUnits = "BKMGT";

/// Powers of 1024 that `unit` stands for: 0 for "" and "B", 1 for "k", "KB" and "KiB".
std::optional<int> ByteExponent(std::string_view unit) {
  if (unit.empty()) return 0;
  std::string upper(unit);
  for (char& c : upper) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  const std::size_t exponent = kByteUnits.find(upper[0]);
  if (exponent == std::string_view::npos) return std::nullopt;
  const std::string_view rest = std::string_view(upper).substr(1);
  if (!rest.empty() && (exponent == 0 || (rest != "B" && rest != "IB"))) return std::nullopt;
  return static_cast<int>(exponent);
}

struct TimeUnit {
  std::string_view name;
  double nanoseconds;
};
constexpr std::array<TimeUnit, 7> kTimeUnits = {{
    {"", 1e9},
    {"s", 1e9},
    {"ms", 1e6},
    {"us", 1e3},
    {"ns", 1.0},
    {"m", 60e9},
    {"h", 3600e9},
}};

constexpr std::string_view kNotANumber = "does not start with a number that is 0 or more";

}  // namespace

Result<std::uint64_t> ParseBytes(std::string_view text) {
  const auto [number, unit] = Split(text);
  if (number.empty()) return Malformed(text, kNotANumber);
  const std::optional<int> exponent = ByteExponent(unit);
  if (!exponent) return Malformed(text, "has an unknown unit; use K, M, G or T (powers of 1024)");
  const std::uint64_t factor = std::uint64_t{1} << (10 * *exponent);

  if (number.find('.') != std::string_view::npos) {
    const std::optional<double> value = ParseNumber<double>(number);
    if (!value) return Malformed(text, kNotANumber);
    if (factor == 1) return Malformed(text, "is not a whole number of bytes");
    const double bytes = *value * static_cast<double>(factor);
    if (bytes >= 0x1p64) return Malformed(text, "is too large");
    return static_cast<std::uint64_t>(bytes);
  }
  const std::optional<std::uint64_t> value = ParseNumber<std::uint64_t>(number);
  if (!value || *value > std::numeric_limits<std::uint64_t>::max() / factor) {
    return Malformed(text, "is too large");
  }
  return *value * factor;
}

Result<Nanoseconds> ParseDuration(std::string_view text) {
  const auto [number, unit] = Split(text);
  const std::optional<double> value = ParseNumber<double>(number);
  if (!value) return Malformed(text, kNotANumber);
  for (const TimeUnit& candidate : kTimeUnits) {
    if (candidate.name != unit) continue;
    const double nanoseconds = std::round(*value * candidate.nanoseconds);
    if (nanoseconds >= 0x1p63) return Malformed(text, "is too large");
    return Nanoseconds(static_cast<Nanoseconds::rep>(nanoseconds));
  }
  return Malformed(text, "has an unknown unit; use ns, us, ms, s, m or h");
}

std::string FormatMilliseconds(Nanoseconds duration) {
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(duration);
  return std::to_string(milliseconds.count()) + " ms";
}

std::string FormatBytes(std::uint64_t bytes) {
  double value = static_cast<double>(bytes);
  std::size_t exponent = 0;
  while (value >= 1024 && exponent + 1 < kByteUnits.size()) {
    value /= 1024;
    ++exponent;
  }
  // One decimal, and none where it would be zero.
  const double rounded = std::round(value * 10) / 10;
  char digits[32];
  std::snprintf(digits, sizeof(digits), "%.*f", rounded == std::floor(rounded) ? 0 : 1, rounded);
  std::string unit(1, kByteUnits[exponent]);
  if (exponent > 0) unit += "iB";
  return std::string(digits) + " " + unit;
}

}  // namespace tidegate
