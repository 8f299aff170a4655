#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"

namespace tidegate {

/// Parses "64M", "1.5GiB", "4096": K, M, G, T mean powers of 1024 with or without "iB" ("B" alone
/// and "KB" are accepted as the same powers). Negative, empty, trailing text, overflow: an error.
Result<std::uint64_t> ParseBytes(std::string_view text);

/// Parses seconds with an optional suffix: "30", "2.5s", "500ms", "10m" (also us, ns, h). Negative
/// or text: an error.
Result<Nanoseconds> ParseDuration(std::string_view text);

/// Whole milliseconds, rounded down: "1500 ms".
std::string FormatMilliseconds(Nanoseconds duration);

/// "1.5 MiB", "512 B".
std::string FormatBytes(std::uint64_t bytes);

}  // namespace tidegate
