#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidegate {

/// First line of a file; nullopt if it cannot be read.
std::optional<std::string> ReadSysfsLine(const std::filesystem::path& file);
/// The number that the first line starts with, decimal or 0x...; nullopt without one.
std::optional<std::int64_t> ReadSysfsNumber(const std::filesystem::path& file);

/// The kernel's lists of ranges, "0-3,8": ascending. At most 65,536 numbers are read; what does not
/// parse is left out.
std::vector<int> ParseCpuList(std::string_view text);

/// Names of the entries of a folder, sorted; empty if there is none.
std::vector<std::string> ListFolder(const std::filesystem::path& folder);

}  // namespace tidegate
