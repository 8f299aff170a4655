#pragma once

#include <cstdint>
#include <vector>

#include "collectives/topology/topology.h"
#include "common/status.h"

namespace tidegate {

/// Which parts of a cluster take each other's places when every rank r becomes r + shift, modulo
/// the ranks. Ranks 0 .. shift-1 then stand for all.
struct Orbits {
  int shift = 0;
  std::vector<LinkId> link;         ///< By directed link: the lowest of its orbit.
  std::vector<std::int32_t> links;  ///< By directed link: how many there are in its orbit.
  std::vector<std::int32_t> node;   ///< By node: the lowest of its orbit.
  std::vector<std::int32_t> nodes;  ///< By node: how many there are in its orbit.
};

/// `shift` must divide the ranks, and be such that the cluster looks the same after the shift:
/// ranks of a node, or of all nodes below a leaf switch, where nodes are numbered in that order.
/// kInvalidArgument, with what differs, where it does not. Nodes must list what they consist of in
/// the same order. A shift by all ranks always serves: every part by itself.
/// Cost: O(links).
Result<Orbits> FindOrbits(const Topology& topology, int shift);

}  // namespace tidegate
