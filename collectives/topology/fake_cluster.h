#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "collectives/topology/fabric.h"
#include "collectives/topology/topology.h"

namespace tidegate {

/// A cluster of equal nodes by the figures of the alpha-beta model.
struct FakeClusterOptions {
  double intra_latency_s = 1e-6;       ///< From a rank to another of its node (a1).
  double intra_bandwidth_Bps = 150e9;  ///< Of a rank, each way, at once (B1).
  double inter_latency_s = 5e-6;       ///< From node to node below one leaf (a2); at least a1.
  double nic_bandwidth_Bps = 50e9;     ///< Of each NIC, each way; B2 is that times `rails`.
  int rails = 1;                       ///< NICs of a node, NIC k on rail k.
  /// Rates of the NICs of a node where they differ; overrides the two above unless empty.
  std::vector<double> nic_bandwidths_Bps = {};
  FabricKind fabric = FabricKind::kSingleSwitch;
  int nodes_per_leaf = 32;        ///< For all fabrics but a single switch; 0: one group.
  double oversubscription = 1;    ///< 4 for 4:1.
  double spine_latency_s = 1e-6;  ///< What the way through the spine adds.
};

/// `nodes` nodes of `per_node` ranks, numbered node by node: ids "node0/rank0", "node0/nic0".
/// Between ranks of a node the route is rank, node, rank; between nodes rank, node, NIC, switches,
/// NIC, node, rank. REQUIRES: counts and figures in range (use MakeFakeCluster for a user's).
Topology FakeCluster(int nodes, int per_node, const FakeClusterOptions& options = {});

/// The same with `ranks_of_node[n]` ranks on node n; kInvalidArgument for anything out of range.
/// One node gets no NICs.
Result<Topology> MakeFakeCluster(std::span<const int> ranks_of_node,
                                 const FakeClusterOptions& options = {});

/// Reads "2x4" (nodes x ranks of each) or "3+1" (ranks of each node) into counts for
/// MakeFakeCluster; kInvalidArgument with the text and the two forms.
Result<std::vector<int>> ParseRanksOfNodes(std::string_view text);

/// `topology` with its ranks renumbered: the rank that had number i gets number `numbers[i]`, a
/// permutation (else kInvalidArgument). For round-robin and random placements.
Result<Topology> Renumber(const Topology& topology, std::span<const int> numbers);
/// Numbers for Renumber that deal ranks to nodes in turn; from one that numbers them node by node.
std::vector<int> RoundRobinNumbers(const Topology& topology);

}  // namespace tidegate
