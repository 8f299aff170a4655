#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "collectives/topology/topology.h"

namespace tidegate {

/// How the NICs of a cluster are joined.
enum class FabricKind {
  kSingleSwitch,   ///< All on one switch.
  kFatTree,        ///< All NICs of a group of nodes on one leaf switch; the leaves on a spine.
  kRailOptimised,  ///< A leaf switch for each group of nodes and rail; all leaves on one spine.
  kRailOnly,       ///< As before, but a spine for each rail: rails meet only inside nodes.
};
std::string_view FabricKindName(FabricKind kind);  ///< "single_switch", "fat_tree", ...
std::optional<FabricKind> ParseFabricKind(std::string_view name);

/// A fabric by its figures. A leaf's uplinks are one link with the sum of their rates, and the
/// spine is one switch: packets spread evenly, ports of the spine are no bottleneck.
struct FabricSpec {
  FabricKind kind = FabricKind::kSingleSwitch;
  double port_bandwidth_Bps =
      0;  ///< Between NIC and switch, for NICs that have no rate of their own.
  double port_latency_s = 0;
  double uplink_latency_s = 0;  ///< Between leaf and spine.
  int nodes_per_leaf = 0;       ///< Nodes of a group; 0: all nodes are one group.
  /// What a leaf's ports to NICs have together, divided by its uplinks'. At least 1 where there are
  /// uplinks.
  double oversubscription = 1;
};

/// Appends the switches ("fabric/...") and links of `spec` to `parts`. `nics[n]` are the NICs of
/// node n, in any order: their `rail` says where they belong. kInvalidArgument for figures out of
/// range and for NICs without rail or rate.
Status AddFabric(const FabricSpec& spec, const std::vector<std::vector<VertexId>>& nics,
                 TopologyParts& parts);

}  // namespace tidegate
