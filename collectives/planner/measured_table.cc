#include "collectives/planner/measured_table.h"

#include <cstdint>
#include <optional>

#include "collectives/algorithms/algorithms.h"
#include "common/json/parse_json.h"

namespace tidegate {
namespace {

constexpr std::int64_t kFormat = 1;
constexpr std::int64_t kMostClass = 64;
constexpr double kMostSeconds = 3600;

}  // namespace

nlohmann::json ToJson(const MeasuredTable& table) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [key, seconds] : table)
    rows.push_back({NameOf(std::get<0>(key)), std::get<1>(key), std::get<2>(key), seconds});
  return rows;
}

Result<MeasuredTable> ReadMeasuredTable(const JsonView& rows) {
  MeasuredTable table;
  TIDEGATE_RETURN_IF_ERROR(rows.CheckArray());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const JsonView row = rows.at(i);
    TIDEGATE_RETURN_IF_ERROR(row.CheckArray());
    if (row.size() != 4) return row.Bad("is not [collective, algorithm, size class, seconds]");
    std::string name;
    std::string algorithm;
    std::int64_t size_class = 0;
    double seconds = 0;
    TIDEGATE_RETURN_IF_ERROR(row.at(0).Get(name));
    TIDEGATE_RETURN_IF_ERROR(row.at(1).Get(algorithm));
    TIDEGATE_RETURN_IF_ERROR(row.at(2).Get(size_class, 0, kMostClass));
    TIDEGATE_RETURN_IF_ERROR(row.at(3).Get(seconds));
    const std::optional<Collective> collective = CollectiveNamed(name);
    if (!collective) return row.at(0).Bad("is no collective: \"" + name + "\"");
    if (!(seconds > 0 && seconds <= kMostSeconds)) return row.at(3).Bad("is outside 0 to 3600 s");
    if (FindAlgorithm(*collective, algorithm) == nullptr) continue;
    table[{*collective, algorithm, static_cast<int>(size_class)}] = seconds;
  }
  return table;
}

std::string FormatMeasuredFile(const std::string& machine, int ranks, const MeasuredTable& table) {
  const nlohmann::ordered_json text = {{"tidegate_measured", kFormat},
                                       {"machine", machine},
                                       {"ranks", ranks},
                                       {"seconds", ToJson(table)}};
  return text.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<MeasuredTable> ParseMeasuredFile(std::string_view text, const std::string& machine,
                                        int ranks) {
  const Result<nlohmann::json> json = ParseJson(text);
  if (!json.ok()) return json.status();
  const JsonView root(json.value());
  TIDEGATE_RETURN_IF_ERROR(root.CheckObject({"tidegate_measured", "machine", "ranks", "seconds"}));
  std::int64_t format = 0;
  std::int64_t measured_ranks = 0;
  std::string measured_machine;
  TIDEGATE_RETURN_IF_ERROR(root.Read("tidegate_measured", format, kFormat, kFormat));
  TIDEGATE_RETURN_IF_ERROR(root.Read("machine", measured_machine));
  TIDEGATE_RETURN_IF_ERROR(root.Read("ranks", measured_ranks, 1, 1 << 20));
  if (measured_machine != machine || measured_ranks != ranks)
    return root.Bad("of " + std::to_string(measured_ranks) + " ranks on \"" + measured_machine +
                    "\", not of " + std::to_string(ranks) + " on \"" + machine + "\"");
  if (!root.has("seconds")) return root.Bad("has no seconds");
  return ReadMeasuredTable(root.at("seconds"));
}

}  // namespace tidegate
