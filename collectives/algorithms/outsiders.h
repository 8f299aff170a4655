#pragma once

#include <span>
#include <vector>

#include "collectives/topology/placement.h"

namespace tidegate {

/// The ranks of other nodes than the root's, numbered node by node and within a node in ascending
/// order, and divided among the ranks of the root's node, so that all its NICs have a share: where
/// nodes are alike, a rank's share are the ranks of its own local index. Cost to make: O(p).
class Outsiders {
 public:
  Outsiders(const Placement& placement, int root)
      : insiders_(placement.ranks_on(placement.node_of(root))),
        number_of_(static_cast<std::size_t>(placement.ranks()), -1) {
    for (int node = 0; node < placement.nodes(); ++node) {
      if (node == placement.node_of(root)) continue;
      for (const int rank : placement.ranks_on(node)) {
        number_of_[static_cast<std::size_t>(rank)] = count();
        ranks_.push_back(rank);
      }
    }
  }

  int count() const { return static_cast<int>(ranks_.size()); }
  bool Has(int rank) const { return NumberOf(rank) >= 0; }
  /// From 0; -1 for a rank of the root's node.
  int NumberOf(int rank) const { return number_of_[static_cast<std::size_t>(rank)]; }

  /// The rank of the root's node that an outsider's bytes pass ...
  int RelayOf(int rank) const { return insiders_[At(NumberOf(rank) % insiders())]; }
  /// ... and which of those that pass it they are, from 0 to most_of_one_relay() - 1.
  int TurnOf(int rank) const { return NumberOf(rank) / insiders(); }
  int most_of_one_relay() const { return (count() + insiders() - 1) / insiders(); }
  /// Those that pass the rank with local index `place`, in the order of their turns.
  std::vector<int> Passing(int place) const {
    std::vector<int> passing;
    for (int number = place; number < count(); number += insiders())
      passing.push_back(ranks_[At(number)]);
    return passing;
  }

 private:
  static std::size_t At(int index) { return static_cast<std::size_t>(index); }
  int insiders() const { return static_cast<int>(insiders_.size()); }

  std::span<const int> insiders_;
  std::vector<int> number_of_;
  std::vector<int> ranks_;
};

}  // namespace tidegate
