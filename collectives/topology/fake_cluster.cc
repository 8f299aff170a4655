#include "collectives/topology/fake_cluster.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "common/check.h"

namespace tidegate {
namespace {

Status Bad(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

std::optional<int> ParseCount(std::string_view text) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 1) return std::nullopt;
  return value;
}

Status CheckCounts(std::span<const int> ranks_of_node, std::size_t nics) {
  const TopologyLimits limits;
  std::int64_t ranks = 0;
  for (const int count : ranks_of_node) {
    if (count < 1) return Bad("a node of " + std::to_string(count) + " ranks; it needs at least 1");
    ranks += count;
  }
  const auto nodes = static_cast<std::int64_t>(ranks_of_node.size());
  if (ranks < 1 || ranks > limits.ranks)
    return Bad("a cluster of " + std::to_string(ranks) + " ranks; there must be between 1 and " +
               std::to_string(limits.ranks));
  if (nics > 1024) return Bad("a node of " + std::to_string(nics) + " NICs; at most 1024");
  if (nodes * static_cast<std::int64_t>(nics) > limits.vertices / 4)
    return Bad("a cluster of " + std::to_string(nodes) + " nodes of " + std::to_string(nics) +
               " NICs each is too large");
  return Status();
}

}  // namespace

Topology FakeCluster(int nodes, int per_node, const FakeClusterOptions& options) {
  TIDEGATE_CHECK(nodes >= 1 && per_node >= 1);
  const std::vector<int> ranks_of_node(static_cast<std::size_t>(nodes), per_node);
  Result<Topology> topology = MakeFakeCluster(ranks_of_node, options);
  TIDEGATE_CHECK(topology.ok());
  return std::move(topology).value();
}

Result<Topology> MakeFakeCluster(std::span<const int> ranks_of_node,
                                 const FakeClusterOptions& options) {
  std::vector<double> rates = options.nic_bandwidths_Bps;
  if (options.rails < 0)
    return Bad("a cluster of " + std::to_string(options.rails) +
               " rails; give each node 0 or more");
  if (rates.empty())
    rates.assign(static_cast<std::size_t>(options.rails), options.nic_bandwidth_Bps);
  if (ranks_of_node.size() <= 1) rates.clear();
  TIDEGATE_RETURN_IF_ERROR(CheckCounts(ranks_of_node, rates.size()));
  if (!(options.inter_latency_s >= options.intra_latency_s))
    return Bad("the latency between nodes is less than that inside them");

  TopologyParts parts;
  const auto add = [&parts](VertexKind kind, VertexId parent, std::string id) {
    Vertex vertex;
    vertex.kind = kind;
    vertex.parent = parent;
    vertex.id = std::move(id);
    parts.vertices.push_back(std::move(vertex));
    return static_cast<VertexId>(parts.vertices.size()) - 1;
  };
  std::vector<std::vector<VertexId>> nics(ranks_of_node.size());
  std::int32_t ranks = 0;
  for (std::size_t n = 0; n < ranks_of_node.size(); ++n) {
    const std::string name = "node" + std::to_string(n);
    const VertexId node = add(VertexKind::kNode, kNone, name);
    for (int local = 0; local < ranks_of_node[n]; ++local) {
      const VertexId rank = add(VertexKind::kRank, node, name + "/rank" + std::to_string(local));
      parts.vertices.back().number = ranks++;
      parts.links.push_back(
          {.a = rank,
           .b = node,
           .latency_s = options.intra_latency_s / 2,
           .bandwidth_Bps = {options.intra_bandwidth_Bps, options.intra_bandwidth_Bps},
           .path = PathClass::kLoc});
    }
    for (std::size_t rail = 0; rail < rates.size(); ++rail) {
      const VertexId nic = add(VertexKind::kNic, node, name + "/nic" + std::to_string(rail));
      parts.vertices.back().rail = static_cast<std::int16_t>(rail);
      parts.vertices.back().bandwidth_Bps = rates[rail];
      parts.links.push_back({.a = node,
                             .b = nic,
                             .bandwidth_Bps = {rates[rail], rates[rail]},
                             .path = PathClass::kPix});
      nics[n].push_back(nic);
    }
  }
  if (!rates.empty()) {
    const FabricSpec fabric = {
        .kind = options.fabric,
        .port_latency_s = (options.inter_latency_s - options.intra_latency_s) / 2,
        .uplink_latency_s = options.spine_latency_s / 2,
        .nodes_per_leaf = options.nodes_per_leaf,
        .oversubscription = options.oversubscription};
    TIDEGATE_RETURN_IF_ERROR(AddFabric(fabric, nics, parts));
  }
  parts.name = "fake cluster";
  return Topology::Make(std::move(parts));
}

Result<std::vector<int>> ParseRanksOfNodes(std::string_view text) {
  const Status bad = Bad("\"" + std::string(text) +
                         "\" describes no cluster; write nodes x ranks of each, as in 2x4, or the "
                         "ranks of each node, as in 3+1");
  if (const std::size_t cross = text.find('x'); cross != std::string_view::npos) {
    const std::optional<int> nodes = ParseCount(text.substr(0, cross));
    const std::optional<int> per_node = ParseCount(text.substr(cross + 1));
    if (!nodes || !per_node) return bad;
    const std::int64_t ranks = std::int64_t{*nodes} * *per_node;
    if (ranks > TopologyLimits{}.ranks)
      return Bad("\"" + std::string(text) + "\" has " + std::to_string(ranks) + " ranks; at most " +
                 std::to_string(TopologyLimits{}.ranks) + " are supported");
    return std::vector<int>(static_cast<std::size_t>(*nodes), *per_node);
  }
  std::vector<int> counts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    const std::optional<int> count = ParseCount(text.substr(begin, end - begin));
    if (!count) return bad;
    counts.push_back(*count);
    begin = end + 1;
  }
  return counts;
}

Result<Topology> Renumber(const Topology& topology, std::span<const int> numbers) {
  if (numbers.size() != static_cast<std::size_t>(topology.ranks()))
    return Bad("a placement of " + std::to_string(numbers.size()) + " numbers for " +
               std::to_string(topology.ranks()) + " ranks");
  TopologyParts parts = topology.parts();
  for (Vertex& vertex : parts.vertices) {
    if (vertex.kind == VertexKind::kRank)
      vertex.number = numbers[static_cast<std::size_t>(vertex.number)];
  }
  return Topology::Make(std::move(parts));
}

std::vector<int> RoundRobinNumbers(const Topology& topology) {
  const Placement& placement = topology.placement();
  std::vector<int> order(static_cast<std::size_t>(topology.ranks()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int rank) {
    return std::pair(placement.local_of(rank), placement.node_of(rank));
  });
  std::vector<int> numbers(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    numbers[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
  return numbers;
}

}  // namespace tidegate
