#include "collectives/topology/placement.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "common/check.h"

namespace tidegate {

Result<Placement> Placement::Make(std::span<const int> node_of_rank) {
  if (node_of_rank.empty() || node_of_rank.size() > kMaxRanks)
    return Status(StatusCode::kInvalidArgument,
                  "a placement of " + std::to_string(node_of_rank.size()) +
                      " ranks; there must be between 1 and " + std::to_string(kMaxRanks));
  Placement placement;
  std::unordered_map<int, int> number_of;
  std::vector<int> count;
  placement.node_of_.reserve(node_of_rank.size());
  placement.local_of_.reserve(node_of_rank.size());
  for (const int name : node_of_rank) {
    const auto [entry, is_new] = number_of.try_emplace(name, static_cast<int>(count.size()));
    if (is_new) count.push_back(0);
    placement.node_of_.push_back(entry->second);
    placement.local_of_.push_back(count[static_cast<std::size_t>(entry->second)]++);
  }
  placement.first_.assign(1, 0);
  for (const int ranks : count) placement.first_.push_back(placement.first_.back() + ranks);
  placement.largest_ = *std::max_element(count.begin(), count.end());
  placement.by_node_.resize(node_of_rank.size());
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    const int at = placement.first_[static_cast<std::size_t>(placement.node_of(rank))] +
                   placement.local_of(rank);
    placement.by_node_[static_cast<std::size_t>(at)] = rank;
  }
  return placement;
}

Placement Placement::Block(int nodes, int per_node) {
  TIDEGATE_CHECK(nodes >= 1 && per_node >= 1 && nodes <= kMaxRanks / per_node);
  std::vector<int> node_of;
  node_of.reserve(static_cast<std::size_t>(nodes) * static_cast<std::size_t>(per_node));
  for (int node = 0; node < nodes; ++node) node_of.insert(node_of.end(), per_node, node);
  return Make(node_of).value();
}

Placement Placement::WithSwitches(int nodes_per_switch) const {
  TIDEGATE_CHECK(nodes_per_switch >= 1 && nodes() % nodes_per_switch == 0);
  Placement placement = *this;
  placement.nodes_per_switch_ = nodes_per_switch == nodes() ? 1 : nodes_per_switch;
  return placement;
}

std::span<const int> Placement::ranks_on(int node) const {
  const auto at = static_cast<std::size_t>(node);
  return std::span(by_node_).subspan(static_cast<std::size_t>(first_[at]),
                                     static_cast<std::size_t>(first_[at + 1] - first_[at]));
}

bool Placement::is_even() const { return largest_ * nodes() == ranks(); }

}  // namespace tidegate
