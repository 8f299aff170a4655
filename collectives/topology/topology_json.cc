#include "collectives/topology/topology_json.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/topology/fabric.h"
#include "collectives/topology/fake_cluster.h"
#include "collectives/topology/json_scope.h"
#include "common/json/json_view.h"

namespace tidegate {
namespace {

constexpr std::int64_t kVersion = 1;

std::size_t At(std::int32_t index) { return static_cast<std::size_t>(index); }

/// Appends `count` copies of a template, whose first vertex is the node itself.
void Stamp(const TopologyParts& node, const std::string& name, std::int64_t first,
           std::optional<std::int64_t> count, TopologyParts& parts) {
  for (std::int64_t i = 0; i < count.value_or(1); ++i) {
    const std::string id = count ? name + std::to_string(first + i) : name;
    const auto vertices = static_cast<VertexId>(parts.vertices.size());
    const auto links = static_cast<std::int32_t>(parts.links.size());
    for (const Vertex& vertex : node.vertices) {
      Vertex& copy = parts.vertices.emplace_back(vertex);
      copy.id = vertex.kind == VertexKind::kNode ? id : id + "/" + vertex.id;
      if (copy.parent != kNone) copy.parent += vertices;
    }
    for (Link link : node.links) {
      link.a += vertices;
      link.b += vertices;
      parts.links.push_back(link);
    }
    for (const auto& [index, link_id] : node.link_ids)
      parts.link_ids.emplace(links + index, id + "/" + link_id);
  }
}

std::int64_t CountRanks(const std::vector<Vertex>& vertices) {
  std::int64_t ranks = 0;
  for (const Vertex& vertex : vertices) ranks += vertex.kind == VertexKind::kRank ? 1 : 0;
  return ranks;
}

/// Checks that `count` copies of `node` fit beside `parts`, before any is made.
Status CheckCopies(const JsonView& view, const TopologyParts& node, std::int64_t count,
                   const TopologyParts& parts, std::int64_t ranks, const TopologyLimits& limits) {
  const auto check = [&](std::int64_t have, std::size_t each, std::int64_t limit,
                         std::string_view what) {
    const auto more = static_cast<std::int64_t>(each);
    if (more == 0 || count <= (limit - have) / more) return Status();
    return view.Bad(std::to_string(count) + " nodes of " + std::to_string(more) + " " +
                    std::string(what) + " each are too many; at most " + std::to_string(limit) +
                    " in all are supported");
  };
  TIDEGATE_RETURN_IF_ERROR(
      check(ranks, static_cast<std::size_t>(CountRanks(node.vertices)), limits.ranks, "ranks"));
  TIDEGATE_RETURN_IF_ERROR(check(static_cast<std::int64_t>(parts.vertices.size()),
                                 node.vertices.size(), limits.vertices, "vertices"));
  return check(static_cast<std::int64_t>(parts.links.size()), node.links.size(), limits.links,
               "links");
}

Status ReadNodes(const JsonView& list, const TopologyLimits& limits, TopologyParts& parts) {
  TIDEGATE_RETURN_IF_ERROR(list.CheckArray());
  std::int64_t ranks = CountRanks(parts.vertices);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonView view = list.at(i);
    TIDEGATE_RETURN_IF_ERROR(view.CheckObject({"id", "count", "first", "vertices", "links"}));
    std::string name;
    TIDEGATE_RETURN_IF_ERROR(view.Read("id", name));
    if (name.find('/') != std::string::npos)
      return view.at("id").Bad("the id of a node must not contain \"/\"");
    std::int64_t first = 0;
    std::int64_t count = 1;
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    TIDEGATE_RETURN_IF_ERROR(view.ReadOptional("count", count, 1, kMost));
    TIDEGATE_RETURN_IF_ERROR(view.ReadOptional("first", first, 0, kMost));
    if (view.has("first") && !view.has("count"))
      return view.at("first").Bad("it numbers the copies of a node; add \"count\"");

    TopologyParts start;
    start.vertices.emplace_back();
    start.vertices.back().id = "node";  // what links of the template call it
    JsonScope scope(std::move(start), limits, true);
    TIDEGATE_RETURN_IF_ERROR(view.has("vertices") ? scope.ReadVertices(view.at("vertices"))
                                                  : Status());
    TIDEGATE_RETURN_IF_ERROR(view.has("links") ? scope.ReadLinks(view.at("links")) : Status());
    TIDEGATE_RETURN_IF_ERROR(CheckCopies(view, scope.parts(), count, parts, ranks, limits));
    ranks += count * CountRanks(scope.parts().vertices);
    Stamp(scope.parts(), name, first, view.has("count") ? std::optional(count) : std::nullopt,
          parts);
  }
  return Status();
}

/// The NICs of each node, in order of appearance; those without a rail get their place there.
std::vector<std::vector<VertexId>> NicsOfNodes(TopologyParts& parts) {
  std::vector<std::int32_t> node_of(parts.vertices.size(), kNone);
  std::int32_t nodes = 0;
  for (std::size_t v = 0; v < parts.vertices.size(); ++v) {
    if (parts.vertices[v].kind == VertexKind::kNode) node_of[v] = nodes++;
  }
  std::vector<std::vector<VertexId>> nics(At(nodes));
  for (std::size_t v = 0; v < parts.vertices.size(); ++v) {
    if (parts.vertices[v].kind != VertexKind::kNic) continue;
    VertexId at = static_cast<VertexId>(v);
    // Containment that is cyclic is refused later, when the graph is made.
    constexpr int kDeepest = 64;
    for (int depth = 0; depth < kDeepest && at != kNone && node_of[At(at)] == kNone; ++depth)
      at = parts.vertices[At(at)].parent;
    if (at == kNone || node_of[At(at)] == kNone) continue;
    std::vector<VertexId>& list = nics[At(node_of[At(at)])];
    if (parts.vertices[v].rail == kNone)
      parts.vertices[v].rail = static_cast<std::int16_t>(std::min<std::size_t>(list.size(), 4095));
    list.push_back(static_cast<VertexId>(v));
  }
  return nics;
}

Status ReadFabric(const JsonView& view, TopologyParts& parts) {
  TIDEGATE_RETURN_IF_ERROR(
      view.CheckObject({"kind", "port_bandwidth_Bps", "port_latency_s", "uplink_latency_s",
                        "nodes_per_leaf", "oversubscription"}));
  FabricSpec spec;
  std::string name;
  TIDEGATE_RETURN_IF_ERROR(view.Read("kind", name));
  const std::optional<FabricKind> kind = ParseFabricKind(name);
  if (!kind)
    return view.at("kind").Bad("no fabric is called \"" + name +
                               "\"; there are single_switch, fat_tree, rail_optimised, rail_only");
  spec.kind = *kind;
  TIDEGATE_RETURN_IF_ERROR(ReadLatency(view, "port_latency_s", spec.port_latency_s));
  spec.uplink_latency_s = spec.port_latency_s;
  if (view.has("uplink_latency_s"))
    TIDEGATE_RETURN_IF_ERROR(ReadLatency(view, "uplink_latency_s", spec.uplink_latency_s));
  if (view.has("port_bandwidth_Bps"))
    TIDEGATE_RETURN_IF_ERROR(ReadBandwidth(view, "port_bandwidth_Bps", spec.port_bandwidth_Bps));
  std::int64_t nodes_per_leaf = 0;
  TIDEGATE_RETURN_IF_ERROR(view.ReadOptional("nodes_per_leaf", nodes_per_leaf, 0, 1 << 20));
  spec.nodes_per_leaf = static_cast<int>(nodes_per_leaf);
  TIDEGATE_RETURN_IF_ERROR(view.ReadOptional("oversubscription", spec.oversubscription));
  const Status added = AddFabric(spec, NicsOfNodes(parts), parts);
  return added.ok() ? added : view.Bad(added.message());
}

/// Numbers by "placement", for ranks in the order of the vertices; empty: keep those there are.
Status ReadPlacement(const JsonView& root, const Topology& topology, std::vector<int>& numbers) {
  const bool is_partial = root.has("partial") && root.json()["partial"] == true;
  const auto ranks = static_cast<std::size_t>(topology.ranks());
  numbers.clear();
  if (!root.has("placement")) {
    if (is_partial) return Status();
    numbers.resize(ranks);
    std::iota(numbers.begin(), numbers.end(), 0);
    return Status();
  }
  const JsonView view = root.at("placement");
  if (view.json().is_array()) {
    if (view.size() != ranks)
      return view.Bad("it has " + std::to_string(view.size()) + " numbers for " +
                      std::to_string(ranks) + " ranks");
    for (std::size_t i = 0; i < ranks; ++i) {
      std::int64_t number = 0;
      TIDEGATE_RETURN_IF_ERROR(view.at(i).Get(number, 0, static_cast<std::int64_t>(ranks) - 1));
      numbers.push_back(static_cast<int>(number));
    }
    return Status();
  }
  std::string name;
  TIDEGATE_RETURN_IF_ERROR(view.Get(name));
  if (name != "block" && name != "round_robin")
    return view.Bad("no placement is called \"" + name +
                    "\"; there are block, round_robin, and a list of the ranks' numbers");
  numbers.resize(ranks);
  std::iota(numbers.begin(), numbers.end(), 0);
  return Status();
}

/// Gives the ranks, in the order of the vertices, the numbers that "placement" says.
Result<Topology> Place(const JsonView& root, Topology topology) {
  std::vector<int> numbers;
  if (Status status = ReadPlacement(root, topology, numbers); !status.ok()) return status;
  if (numbers.empty()) return topology;
  std::vector<int> by_rank(numbers.size());
  std::size_t next = 0;
  bool changes = false;
  for (const Vertex& vertex : topology.vertices()) {
    if (vertex.kind != VertexKind::kRank) continue;
    changes = changes || vertex.number != numbers[next];
    by_rank[At(vertex.number)] = numbers[next++];
  }
  if (changes) {
    Result<Topology> renumbered = Renumber(topology, by_rank);
    if (!renumbered.ok()) return root.at("placement").Bad(renumbered.status().message());
    topology = std::move(renumbered).value();
  }
  if (!root.has("placement") || root.json()["placement"] != "round_robin") return topology;
  return Renumber(topology, RoundRobinNumbers(topology));
}

Result<Topology> Read(const JsonView& root, const TopologyReadOptions& options) {
  TIDEGATE_RETURN_IF_ERROR(
      root.CheckObject({"tidegate_topology", "name", "partial", "nodes", "fabric", "vertices",
                        "links", "overrides", "placement"}));
  std::int64_t version = 0;
  TIDEGATE_RETURN_IF_ERROR(root.Read("tidegate_topology", version, INT64_MIN, INT64_MAX));
  if (version != kVersion)
    return root.at("tidegate_topology")
        .Bad("version " + std::to_string(version) + " is not known; this tidegate reads version " +
             std::to_string(kVersion));
  bool is_partial = false;
  TIDEGATE_RETURN_IF_ERROR(root.ReadOptional("partial", is_partial));
  if (is_partial && options.discovered == nullptr)
    return root.at("partial").Bad(
        "a partial description amends a discovered machine, and there is none here");
  if (!is_partial && !root.has("nodes"))
    return root.Bad("the key \"nodes\" is missing (or \"partial\": true)");

  TopologyParts parts;
  if (is_partial) parts = options.discovered->parts();
  std::int64_t ranks = CountRanks(parts.vertices);
  TIDEGATE_RETURN_IF_ERROR(root.ReadOptional("name", parts.name));
  if (root.has("nodes"))
    TIDEGATE_RETURN_IF_ERROR(ReadNodes(root.at("nodes"), options.limits, parts));
  JsonScope scope(std::move(parts), options.limits, false);
  if (root.has("vertices")) TIDEGATE_RETURN_IF_ERROR(scope.ReadVertices(root.at("vertices")));
  if (root.has("overrides")) {
    const JsonView overrides = root.at("overrides");
    TIDEGATE_RETURN_IF_ERROR(overrides.CheckObject({"vertices", "links"}));
    if (overrides.has("vertices"))
      TIDEGATE_RETURN_IF_ERROR(scope.OverrideVertices(overrides.at("vertices")));
  }
  // After all that is said about NICs, before the links that may end in its switches.
  parts = std::move(scope.parts());
  if (root.has("fabric")) {
    TIDEGATE_RETURN_IF_ERROR(ReadFabric(root.at("fabric"), parts));
  } else {
    NicsOfNodes(parts);
  }
  JsonScope whole(std::move(parts), options.limits, false);
  if (root.has("links")) TIDEGATE_RETURN_IF_ERROR(whole.ReadLinks(root.at("links")));
  if (root.has("overrides")) {
    const JsonView overrides = root.at("overrides");
    if (overrides.has("links"))
      TIDEGATE_RETURN_IF_ERROR(whole.OverrideLinks(overrides.at("links")));
  }
  for (Vertex& vertex : whole.parts().vertices) {
    if (vertex.kind == VertexKind::kRank && vertex.number == kNone)
      vertex.number = static_cast<std::int32_t>(ranks++);
  }
  Result<Topology> topology = Topology::Make(std::move(whole.parts()), options.limits);
  if (!topology.ok()) return root.Bad(topology.status().message());
  return Place(root, std::move(topology).value());
}

}  // namespace

Result<Topology> ParseTopology(std::string_view text, const TopologyReadOptions& options) {
  const Result<nlohmann::json> parsed = ParseJson(text, options.json);
  if (!parsed.ok()) return parsed.status();
  return Read(JsonView(parsed.value()), options);
}

Result<Topology> LoadTopology(const std::string& path, const TopologyReadOptions& options) {
  const Result<std::string> text = ReadTextFile(path, options.json.bytes);
  if (!text.ok()) return text.status();
  Result<Topology> topology = ParseTopology(text.value(), options);
  if (topology.ok()) return topology;
  return Status(topology.status().code(), path + ": " + topology.status().message());
}

}  // namespace tidegate
