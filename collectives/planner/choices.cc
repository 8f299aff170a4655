#include "collectives/planner/choices.h"

#include <array>
#include <optional>
#include <utility>

namespace tidegate {
namespace {

constexpr std::array<std::pair<std::string_view, Collective>, 8> kShortNames = {{
    {"ag", Collective::kAllGather},
    {"rs", Collective::kReduceScatter},
    {"ar", Collective::kAllReduce},
    {"bc", Collective::kBroadcast},
    {"red", Collective::kReduce},
    {"ga", Collective::kGather},
    {"sc", Collective::kScatter},
    {"a2a", Collective::kAllToAll},
}};

/// Of those that have a choice of algorithms.
std::optional<Collective> ChosenFor(std::string_view name) {
  for (const auto& [short_name, collective] : kShortNames)
    if (name == short_name || name == NameOf(collective)) return collective;
  return std::nullopt;
}

Status Wrong(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "TIDEGATE_ALGO: " + message);
}

std::string Names(Collective collective, const Placement* placement) {
  std::string names;
  for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
    if (algorithm.collective != collective) continue;
    if (placement != nullptr && !algorithm.serves(*placement)) continue;
    names += (names.empty() ? "" : ", ") + algorithm.name;
  }
  return names;
}

}  // namespace

Result<AlgorithmChoices> ParseAlgorithmChoices(std::string_view text) {
  AlgorithmChoices choices;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t colon = item.find(':');
    if (colon == std::string_view::npos)
      return Wrong("\"" + std::string(item) +
                   "\" is not of the form collective:algorithm, as in ag:ring,rs:ring");
    const std::string_view name = item.substr(0, colon);
    const std::string algorithm(item.substr(colon + 1));
    const std::optional<Collective> collective = ChosenFor(name);
    if (!collective) {
      std::string known;
      for (const auto& [short_name, one] : kShortNames)
        known += (known.empty() ? "" : ", ") + std::string(short_name) + " (" +
                 std::string(NameOf(one)) + ")";
      return Wrong("there is no collective \"" + std::string(name) + "\"; there are " + known);
    }
    if (FindAlgorithm(*collective, algorithm) == nullptr)
      return Wrong("there is no algorithm \"" + algorithm + "\" for " +
                   std::string(NameOf(*collective)) + "; there are " + Names(*collective, nullptr));
    if (!choices.emplace(*collective, algorithm).second)
      return Wrong("names " + std::string(NameOf(*collective)) + " twice");
  }
  return choices;
}

Status CheckChoices(const AlgorithmChoices& choices, const Placement& placement) {
  for (const auto& [collective, name] : choices) {
    if (FindAlgorithm(collective, name)->serves(placement)) continue;
    return Wrong("algorithm \"" + name + "\" of " + std::string(NameOf(collective)) +
                 " cannot be run by " + std::to_string(placement.ranks()) + " ranks on " +
                 std::to_string(placement.nodes()) +
                 " node(s); possible: " + PossibleAlgorithms(collective, placement));
  }
  return Status();
}

std::string PossibleAlgorithms(Collective collective, const Placement& placement) {
  return Names(collective, &placement);
}

}  // namespace tidegate
