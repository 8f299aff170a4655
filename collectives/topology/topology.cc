#include "collectives/topology/topology.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

namespace tidegate {
namespace {

constexpr std::array<std::string_view, 8> kKindNames = {"node", "numa", "cache",  "core",
                                                        "gpu",  "nic",  "switch", "rank"};
constexpr std::array<std::string_view, 11> kPathNames = {"LOC", "NVL", "NVB", "C2C", "PIX", "PXB",
                                                         "PXN", "PHB", "SYS", "NET", "DIS"};

template <typename Enum, std::size_t kCount>
std::optional<Enum> ParseName(const std::array<std::string_view, kCount>& names,
                              std::string_view name) {
  const auto* const found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

std::size_t At(std::int32_t index) { return static_cast<std::size_t>(index); }

Status Bad(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

std::string Number(double value) {
  std::string text = std::to_string(value);
  if (std::isfinite(value) && (value > 1e9 || (value != 0 && std::abs(value) < 1e-3))) {
    std::array<char, 32> buffer{};
    std::snprintf(buffer.data(), buffer.size(), "%g", value);
    text = buffer.data();
  }
  return text;
}

Status CheckSizes(const TopologyParts& parts, const TopologyLimits& limits) {
  const auto check = [](std::size_t count, std::int64_t limit, std::string_view what) {
    if (static_cast<std::int64_t>(count) <= limit) return Status();
    return Bad("a topology of " + std::to_string(count) + " " + std::string(what) + "; at most " +
               std::to_string(limit) + " are supported");
  };
  TIDEGATE_RETURN_IF_ERROR(check(parts.vertices.size(), limits.vertices, "vertices"));
  TIDEGATE_RETURN_IF_ERROR(check(parts.links.size(), limits.links, "links"));
  const auto is_rank = [](const Vertex& vertex) { return vertex.kind == VertexKind::kRank; };
  return check(static_cast<std::size_t>(std::ranges::count_if(parts.vertices, is_rank)),
               limits.ranks, "ranks");
}

/// Gives each vertex the number of the node that contains it; nodes count in order of appearance.
Status AssignNodes(std::vector<Vertex>& vertices) {
  constexpr std::int32_t kUnknown = -2;
  constexpr std::int32_t kVisiting = -3;
  std::int32_t nodes = 0;
  for (Vertex& vertex : vertices) {
    vertex.node = vertex.kind == VertexKind::kNode ? nodes++ : kUnknown;
    if (vertex.kind == VertexKind::kNode && vertex.parent != kNone)
      return Bad("node \"" + vertex.id + "\" lies in another vertex; nodes lie in none");
    if (vertex.parent < kNone || vertex.parent >= static_cast<std::int32_t>(vertices.size()))
      return Bad("vertex \"" + vertex.id + "\" lies in a vertex that is not there");
  }
  std::vector<VertexId> path;
  for (VertexId start = 0; start < static_cast<VertexId>(vertices.size()); ++start) {
    VertexId at = start;
    for (path.clear(); vertices[At(at)].node == kUnknown; at = vertices[At(at)].parent) {
      vertices[At(at)].node = kVisiting;
      path.push_back(at);
      if (vertices[At(at)].parent == kNone) break;
    }
    std::int32_t node = vertices[At(at)].node;
    if (node == kVisiting) {
      if (vertices[At(at)].parent != kNone)
        return Bad("containment is cyclic: \"" + vertices[At(at)].id + "\" lies in itself");
      node = kNone;
    }
    for (const VertexId vertex : path) vertices[At(vertex)].node = node;
  }
  for (const Vertex& vertex : vertices) {
    if (vertex.node == kNone && vertex.kind != VertexKind::kSwitch)
      return Bad(std::string(VertexKindName(vertex.kind)) + " \"" + vertex.id +
                 "\" lies in no node; only switches may");
  }
  if (nodes == 0) return Bad("a topology without a node; add a vertex of kind \"node\"");
  return Status();
}

Status CheckIds(const std::vector<Vertex>& vertices) {
  std::unordered_set<std::string_view> ids;
  ids.reserve(vertices.size());
  for (const Vertex& vertex : vertices) {
    if (vertex.id.empty()) return Bad("a vertex has an empty id");
    if (!ids.insert(vertex.id).second)
      return Bad("two vertices have the id \"" + vertex.id + "\"; rename one");
  }
  return Status();
}

Status CheckLink(const Link& link, const std::string& name, std::int32_t vertices) {
  if (link.a < 0 || link.b < 0 || link.a >= vertices || link.b >= vertices)
    return Bad("link " + name + " ends in a vertex that is not there");
  if (link.a == link.b) return Bad("link " + name + " joins a vertex with itself");
  for (const double bandwidth : link.bandwidth_Bps) {
    if (!(bandwidth >= kLeastBandwidthBps && bandwidth <= kMostBandwidthBps))
      return Bad("link " + name + " has a bandwidth of " + Number(bandwidth) +
                 " byte/s; it must be between 1 and 1e18 (leave out a link that is down)");
  }
  if (!(link.latency_s >= 0 && link.latency_s <= kMostLatencySeconds))
    return Bad("link " + name + " has a latency of " + Number(link.latency_s) +
               " s; it must be between 0 and 3600");
  return Status();
}

}  // namespace

std::string_view VertexKindName(VertexKind kind) {
  return kKindNames[static_cast<std::size_t>(kind)];
}
std::optional<VertexKind> ParseVertexKind(std::string_view name) {
  return ParseName<VertexKind>(kKindNames, name);
}
std::string_view PathClassName(PathClass path) {
  return kPathNames[static_cast<std::size_t>(path)];
}
std::optional<PathClass> ParsePathClass(std::string_view name) {
  return ParseName<PathClass>(kPathNames, name);
}

Result<Topology> Topology::Make(TopologyParts parts, const TopologyLimits& limits) {
  TIDEGATE_RETURN_IF_ERROR(CheckSizes(parts, limits));
  TIDEGATE_RETURN_IF_ERROR(CheckIds(parts.vertices));
  TIDEGATE_RETURN_IF_ERROR(AssignNodes(parts.vertices));
  for (std::size_t i = 0; i < parts.links.size(); ++i) {
    const Link& link = parts.links[i];
    const auto vertices = static_cast<std::int32_t>(parts.vertices.size());
    // The name is put together only for a link that is refused: there may be millions.
    if (CheckLink(link, "", vertices).ok()) continue;
    std::string name = std::to_string(i);
    if (link.a >= 0 && link.b >= 0 && link.a < vertices && link.b < vertices)
      name = "\"" + parts.vertices[At(link.a)].id + "--" + parts.vertices[At(link.b)].id + "\"";
    return CheckLink(link, name, vertices);
  }
  Topology topology;
  topology.parts_ = std::move(parts);
  topology.Order();
  TIDEGATE_RETURN_IF_ERROR(topology.Index());
  TIDEGATE_RETURN_IF_ERROR(topology.CheckConnected());
  return topology;
}

void Topology::Order() {
  // The fabric's kNone becomes the greatest key.
  const auto key = [](std::int32_t node) { return static_cast<std::uint32_t>(node); };
  std::vector<Vertex>& vertices = parts_.vertices;
  std::vector<VertexId> order(vertices.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](VertexId v) { return key(vertices[At(v)].node); });
  std::vector<VertexId> place(vertices.size());
  std::vector<Vertex> ordered;
  ordered.reserve(vertices.size());
  for (const VertexId v : order) {
    place[At(v)] = static_cast<VertexId>(ordered.size());
    ordered.push_back(std::move(vertices[At(v)]));
  }
  for (Vertex& vertex : ordered) {
    if (vertex.parent != kNone) vertex.parent = place[At(vertex.parent)];
  }
  vertices = std::move(ordered);

  const auto link_key = [&](const Link& link) {
    const std::int32_t node = vertices[At(link.a)].node;
    return key(node == vertices[At(link.b)].node ? node : kNone);
  };
  for (Link& link : parts_.links) {
    link.a = place[At(link.a)];
    link.b = place[At(link.b)];
  }
  std::vector<std::int32_t> link_order(parts_.links.size());
  std::iota(link_order.begin(), link_order.end(), 0);
  std::ranges::stable_sort(link_order, {},
                           [&](std::int32_t i) { return link_key(parts_.links[At(i)]); });
  std::vector<Link> links;
  std::unordered_map<std::int32_t, std::string> names;
  links.reserve(parts_.links.size());
  for (const std::int32_t i : link_order) {
    if (const auto name = parts_.link_ids.find(i); name != parts_.link_ids.end())
      names.emplace(static_cast<std::int32_t>(links.size()), std::move(name->second));
    links.push_back(parts_.links[At(i)]);
  }
  parts_.links = std::move(links);
  parts_.link_ids = std::move(names);
}

Status Topology::Index() {
  const auto count = static_cast<VertexId>(parts_.vertices.size());
  for (VertexId v = 0; v < count; ++v) {
    const Vertex& vertex = parts_.vertices[At(v)];
    if (vertex.kind == VertexKind::kNode) node_vertex_.push_back(v);
    if (vertex.kind == VertexKind::kRank) rank_vertex_.push_back(kNone);
    while (vertex.node != kNone && node_begin_.size() <= At(vertex.node)) node_begin_.push_back(v);
    if (vertex.node == kNone && node_begin_.size() == node_vertex_.size()) node_begin_.push_back(v);
  }
  if (node_begin_.size() == node_vertex_.size()) node_begin_.push_back(count);
  if (rank_vertex_.empty())
    return Bad("a topology without ranks; add vertices of kind \"rank\" to its nodes");
  for (VertexId v = 0; v < count; ++v) {
    const Vertex& vertex = parts_.vertices[At(v)];
    if (vertex.kind != VertexKind::kRank) continue;
    if (vertex.number < 0 || vertex.number >= ranks() || rank_vertex(vertex.number) != kNone)
      return Bad("rank vertex \"" + vertex.id + "\" has the number " +
                 std::to_string(vertex.number) + "; the " + std::to_string(ranks()) +
                 " ranks must have the numbers from 0, each once");
    rank_vertex_[At(vertex.number)] = v;
  }

  leaving_begin_.assign(parts_.vertices.size() + 1, 0);
  for (LinkId id = 0; id < link_end(); ++id) ++leaving_begin_[At(from(id)) + 1];
  std::partial_sum(leaving_begin_.begin(), leaving_begin_.end(), leaving_begin_.begin());
  leaving_.resize(At(link_end()));
  std::vector<std::int32_t> next(leaving_begin_.begin(), leaving_begin_.end() - 1);
  for (LinkId id = 0; id < link_end(); ++id) leaving_[At(next[At(from(id))]++)] = id;

  std::vector<int> node_of;
  node_of.reserve(rank_vertex_.size());
  for (int rank = 0; rank < ranks(); ++rank) node_of.push_back(this->node_of(rank));
  Result<Placement> placement = Placement::Make(node_of);
  if (!placement.ok()) return placement.status();
  placement_ = placement.value().WithSwitches(NodesPerSwitch(placement.value()));
  return Status();
}

/// 1 unless equally many consecutive nodes hang on the same switches, and others on others.
int Topology::NodesPerSwitch(const Placement& placement) const {
  std::vector<std::set<VertexId>> of_node(node_vertex_.size());
  for (LinkId id = 0; id < link_end(); ++id) {
    const Vertex& near = vertex(from(id));
    const Vertex& far = vertex(to(id));
    if (near.node != kNone && far.node == kNone && far.kind == VertexKind::kSwitch)
      of_node[At(near.node)].insert(to(id));
  }
  const auto switches = [&](int node) -> const std::set<VertexId>& {
    return of_node[At(node_of(placement.ranks_on(node).front()))];
  };
  const int nodes = placement.nodes();
  int together = 1;
  while (together < nodes && switches(together) == switches(0)) ++together;
  if (nodes % together != 0) return 1;
  for (int node = together; node < nodes; ++node) {
    const bool is_first = node % together == 0;
    if ((switches(node) == switches(node - 1)) == is_first) return 1;
  }
  return together;
}

Status Topology::CheckConnected() const {
  std::vector<bool> seen(parts_.vertices.size());
  std::vector<VertexId> left = {rank_vertex(0)};
  seen[At(left.back())] = true;
  while (!left.empty()) {
    const VertexId v = left.back();
    left.pop_back();
    for (const LinkId id : leaving(v)) {
      if (seen[At(to(id))]) continue;
      seen[At(to(id))] = true;
      left.push_back(to(id));
    }
  }
  for (int rank = 1; rank < ranks(); ++rank) {
    if (!seen[At(rank_vertex(rank))])
      return Bad("no chain of links joins rank " + std::to_string(rank) + " (\"" +
                 vertex(rank_vertex(rank)).id + "\") with rank 0 (\"" + vertex(rank_vertex(0)).id +
                 "\"); add the missing link");
  }
  return Status();
}

std::span<const LinkId> Topology::leaving(VertexId v) const {
  const auto begin = At(leaving_begin_[At(v)]);
  return std::span(leaving_).subspan(begin, At(leaving_begin_[At(v) + 1]) - begin);
}

std::string Topology::link_name(LinkId id) const {
  if (const auto name = parts_.link_ids.find(id / 2); name != parts_.link_ids.end())
    return name->second;
  return vertex(link(id).a).id + "--" + vertex(link(id).b).id;
}

std::optional<VertexId> Topology::FindVertex(std::string_view id) const {
  const auto found = std::ranges::find(parts_.vertices, id, &Vertex::id);
  if (found == parts_.vertices.end()) return std::nullopt;
  return static_cast<VertexId>(found - parts_.vertices.begin());
}

bool Topology::operator==(const Topology& other) const {
  return parts_.name == other.parts_.name && parts_.vertices == other.parts_.vertices &&
         parts_.links == other.parts_.links && parts_.link_ids == other.parts_.link_ids;
}

}  // namespace tidegate
