#include "collectives/topology/fabric.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace tidegate {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"single_switch", "fat_tree", "rail_optimised",
                                                    "rail_only"};

Status Bad(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

bool IsRate(double value) { return std::isfinite(value) && value > 0; }

Status Check(const FabricSpec& spec) {
  for (const double latency : {spec.port_latency_s, spec.uplink_latency_s}) {
    if (!std::isfinite(latency) || latency < 0)
      return Bad("a fabric's latency is " + std::to_string(latency) +
                 " s; it must be zero or more and finite");
  }
  if (!std::isfinite(spec.oversubscription) || spec.oversubscription < 1)
    return Bad("oversubscription is " + std::to_string(spec.oversubscription) +
               "; it must be at least 1 (4 for 4:1)");
  if (spec.nodes_per_leaf < 0)
    return Bad("nodes_per_leaf is " + std::to_string(spec.nodes_per_leaf) +
               "; it must be 1 or more, or 0 for all nodes");
  return Status();
}

/// Appends switches and links, and remembers how much hangs on each leaf.
class Builder {
 public:
  Builder(const FabricSpec& spec, TopologyParts& parts) : spec_(spec), parts_(parts) {}

  VertexId Switch(const std::string& name) {
    const auto [entry, is_new] =
        switches_.try_emplace(name, static_cast<VertexId>(parts_.vertices.size()));
    if (is_new) {
      Vertex vertex;
      vertex.kind = VertexKind::kSwitch;
      vertex.id = "fabric/" + name;
      parts_.vertices.push_back(std::move(vertex));
    }
    return entry->second;
  }

  void Join(VertexId a, VertexId b, double bandwidth, double latency) {
    parts_.links.push_back({.a = a,
                            .b = b,
                            .latency_s = latency,
                            .bandwidth_Bps = {bandwidth, bandwidth},
                            .path = PathClass::kNet});
  }

  /// Puts `nic` on `leaf`, and `leaf`, once all NICs are there, on `spine`.
  void Attach(VertexId nic, double bandwidth, const std::string& leaf, const std::string& spine) {
    const VertexId at = Switch(leaf);
    Join(nic, at, bandwidth, spec_.port_latency_s);
    if (spine.empty()) return;
    Uplink& uplink = uplinks_[at];
    uplink.spine = spine;
    uplink.below_Bps += bandwidth;
  }

  void Uplinks() {
    for (const auto& [leaf, uplink] : uplinks_)
      Join(leaf, Switch(uplink.spine), uplink.below_Bps / spec_.oversubscription,
           spec_.uplink_latency_s);
  }

 private:
  struct Uplink {
    std::string spine;
    double below_Bps = 0;
  };
  const FabricSpec& spec_;
  TopologyParts& parts_;
  std::map<std::string, VertexId> switches_;
  std::map<VertexId, Uplink> uplinks_;
};

}  // namespace

std::string_view FabricKindName(FabricKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::optional<FabricKind> ParseFabricKind(std::string_view name) {
  const auto* const found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<FabricKind>(found - kNames.begin());
}

Status AddFabric(const FabricSpec& spec, const std::vector<std::vector<VertexId>>& nics,
                 TopologyParts& parts) {
  TIDEGATE_RETURN_IF_ERROR(Check(spec));
  const std::size_t group_size =
      spec.nodes_per_leaf == 0 ? nics.size() : static_cast<std::size_t>(spec.nodes_per_leaf);
  const bool is_one_group = nics.size() <= group_size;
  Builder builder(spec, parts);
  for (std::size_t node = 0; node < nics.size(); ++node) {
    const std::string group = std::to_string(node / std::max<std::size_t>(group_size, 1));
    for (const VertexId nic : nics[node]) {
      const Vertex& vertex = parts.vertices[static_cast<std::size_t>(nic)];
      const double bandwidth =
          vertex.bandwidth_Bps > 0 ? vertex.bandwidth_Bps : spec.port_bandwidth_Bps;
      if (!IsRate(bandwidth))
        return Bad("NIC \"" + vertex.id +
                   "\" has no rate; give it or the fabric a positive bandwidth");
      if (vertex.rail < 0) return Bad("NIC \"" + vertex.id + "\" has no rail");
      const std::string rail = "rail" + std::to_string(vertex.rail);
      switch (spec.kind) {
        case FabricKind::kSingleSwitch:
          builder.Attach(nic, bandwidth, "switch", "");
          break;
        case FabricKind::kFatTree:
          builder.Attach(nic, bandwidth, "leaf" + group, is_one_group ? "" : "spine");
          break;
        case FabricKind::kRailOptimised:
          builder.Attach(nic, bandwidth, rail + "leaf" + group, "spine");
          break;
        case FabricKind::kRailOnly:
          builder.Attach(nic, bandwidth, rail + "leaf" + group, is_one_group ? "" : rail);
          break;
      }
    }
  }
  builder.Uplinks();
  return Status();
}

}  // namespace tidegate
