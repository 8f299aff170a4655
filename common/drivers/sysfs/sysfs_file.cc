#include "common/drivers/sysfs/sysfs_file.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <system_error>

namespace tidegate {
namespace {

constexpr int kMostNumbers = 1 << 16;

}  // namespace

std::optional<std::string> ReadSysfsLine(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  if (!std::getline(stream, line)) return std::nullopt;
  return line;
}

std::optional<std::int64_t> ReadSysfsNumber(const std::filesystem::path& file) {
  const std::string line = ReadSysfsLine(file).value_or("");
  const bool is_hex = line.starts_with("0x");
  const char* const begin = line.data() + (is_hex ? 2 : 0);
  std::int64_t value = 0;
  const auto [end, error] =
      std::from_chars(begin, line.data() + line.size(), value, is_hex ? 16 : 10);
  if (error != std::errc() || end == begin) return std::nullopt;
  return value;
}

std::vector<int> ParseCpuList(std::string_view text) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at < end) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) {
      ++at;
      continue;
    }
    at = parsed.ptr;
    int last = first;
    if (at < end && *at == '-') {
      parsed = std::from_chars(at + 1, end, last);
      at = parsed.ec == std::errc() ? parsed.ptr : at + 1;
    }
    if (first < 0 || last >= kMostNumbers) continue;
    for (int number = first; number <= last; ++number) numbers.push_back(number);
    if (numbers.size() > static_cast<std::size_t>(kMostNumbers)) break;
  }
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<std::string> ListFolder(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename());
  std::ranges::sort(names);
  return names;
}

}  // namespace tidegate
