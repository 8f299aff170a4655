#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"

namespace tidegate {

/// Which node each rank of a group runs on, its place there, and which nodes share a switch: all of
/// a machine that an algorithm looks at. Nodes are numbered in the order of their first ranks,
/// ranks within a node in ascending order, so that equal placements are equal whatever their nodes
/// are called. Immutable.
class Placement {
 public:
  /// `node_of_rank[r]` is any name for the node of rank r; equal names are one node. Between 1 and
  /// kMaxRanks ranks, else kInvalidArgument.
  static Result<Placement> Make(std::span<const int> node_of_rank);
  /// Ranks 0 .. per_node - 1 on the first node, and so on. REQUIRES: counts in range.
  static Placement Block(int nodes, int per_node);
  /// The same with groups of `nodes_per_switch` consecutive nodes, each below a switch of its own.
  /// REQUIRES: it divides the number of nodes.
  Placement WithSwitches(int nodes_per_switch) const;
  /// All ranks on one node. REQUIRES: 1 <= ranks <= kMaxRanks.
  static Placement OneNode(int ranks) { return Block(1, ranks); }

  static constexpr int kMaxRanks = 1 << 20;

  int ranks() const { return static_cast<int>(node_of_.size()); }
  int nodes() const { return static_cast<int>(first_.size()) - 1; }
  int node_of(int rank) const { return node_of_[static_cast<std::size_t>(rank)]; }
  /// Place of `rank` among the ranks of its node, from 0.
  int local_of(int rank) const { return local_of_[static_cast<std::size_t>(rank)]; }
  /// The ranks of `node`, ascending.
  std::span<const int> ranks_on(int node) const;
  int ranks_on_largest_node() const { return largest_; }
  /// Whether all nodes have the same number of ranks.
  bool is_even() const;

  /// Nodes below each switch, where several switches have equally many and consecutive ones of
  /// them; else 1.
  int nodes_per_switch() const { return nodes_per_switch_; }

  bool operator==(const Placement& other) const {
    return node_of_ == other.node_of_ && nodes_per_switch_ == other.nodes_per_switch_;
  }

 private:
  Placement() = default;

  std::vector<int> node_of_;
  std::vector<int> local_of_;
  std::vector<int> by_node_;  ///< Ranks, grouped by node.
  std::vector<int> first_;    ///< Index in by_node_ of each node's first rank, then the end.
  int largest_ = 0;
  int nodes_per_switch_ = 1;
};

}  // namespace tidegate
