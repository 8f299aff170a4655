#include "bench/collectives/options.h"

#include <charconv>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "bench/collectives/flag_barrier.h"
#include "common/units.h"

namespace tidegate::bench {
namespace {

Status Bad(std::string_view argument, const std::string& what) {
  return {StatusCode::kInvalidArgument, std::string(argument) + ": " + what};
}

Status ReadInt(std::string_view flag, std::string_view text, int least, int most, int& result) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    return Bad(flag, "wants a number from " + std::to_string(least) + " to " +
                         std::to_string(most) + ", got \"" + std::string(text) + "\"");
  result = value;
  return {};
}

/// Calls `read` with each part of `list` between commas.
Status ReadList(std::string_view list, const std::function<Status(std::string_view)>& read) {
  for (;;) {
    const std::size_t comma = list.find(',');
    TIDEGATE_RETURN_IF_ERROR(read(list.substr(0, comma)));
    if (comma == std::string_view::npos) return {};
    list.remove_prefix(comma + 1);
  }
}

Status ReadValue(std::string_view flag, std::string_view value, Options& options) {
  if (flag == "--sizes") {
    options.sizes.clear();
    return ReadList(value, [&](std::string_view text) -> Status {
      const Result<std::uint64_t> bytes = ParseBytes(text);
      if (!bytes.ok()) return Bad(flag, bytes.status().message());
      options.sizes.push_back(bytes.value());
      return {};
    });
  }
  if (flag == "--ranks") {
    options.ranks.clear();
    return ReadList(value, [&](std::string_view text) -> Status {
      options.ranks.push_back(0);
      return ReadInt(flag, text, 1, kMostRanks, options.ranks.back());
    });
  }
  if (flag == "--passes") return ReadInt(flag, value, 1, 1'000, options.passes);
  if (flag == "--rounds") return ReadInt(flag, value, 1, 10'000, options.rounds);
  if (flag == "--calls") return ReadInt(flag, value, 0, 1'000'000, options.calls);
  if (flag == "--warmups") return ReadInt(flag, value, 0, 1'000'000, options.warmups);
  if (flag == "-J") {
    options.json = value;
    return {};
  }
  return Bad(flag, "no such option; --help lists them");
}

bool ReadSwitch(std::string_view flag, Options& options) {
  const std::pair<std::string_view, bool*> switches[] = {
      {"--async", &options.async}, {"--fresh", &options.fresh}, {"--late", &options.late},
      {"--load", &options.load},   {"--idle", &options.idle},   {"--resident", &options.resident}};
  for (const auto& [name, value] : switches) {
    if (flag != name) continue;
    *value = true;
    return true;
  }
  if (flag != "--alone") return false;
  options.rivals = false;
  return true;
}

}  // namespace

Result<Options> ParseOptions(std::span<const char* const> arguments) {
  Options options;
  std::vector<Collective> named;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (!argument.starts_with('-')) {
      const std::optional<Collective> collective = CollectiveNamed(argument);
      if (!collective.has_value() || *collective == Collective::kReduce)
        return Bad(argument, "is no collective of this bench; --help lists the options");
      named.push_back(*collective);
    } else if (!ReadSwitch(argument, options)) {
      if (i + 1 == arguments.size()) return Bad(argument, "wants a value, or does not exist");
      TIDEGATE_RETURN_IF_ERROR(ReadValue(argument, arguments[++i], options));
    }
  }
  if (!named.empty()) options.collectives = std::move(named);
  return options;
}

}  // namespace tidegate::bench
