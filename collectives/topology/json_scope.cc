#include "collectives/topology/json_scope.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace tidegate {
namespace {

std::size_t At(std::int32_t index) { return static_cast<std::size_t>(index); }

std::uint64_t Pair(VertexId a, VertexId b) {
  return static_cast<std::uint64_t>(std::min(a, b)) << 32 |
         static_cast<std::uint64_t>(std::max(a, b));
}

std::string Quoted(const std::string& id) { return "\"" + id + "\""; }

std::string Range(std::int64_t most, std::string_view what) {
  return "at most " + std::to_string(most) + " " + std::string(what) + " are supported";
}

template <typename Enum>
std::string Names(std::string_view (*name)(Enum), int count, int first = 0) {
  std::string names;
  for (int i = first; i < count; ++i)
    names += (names.empty() ? "" : ", ") + std::string(name(static_cast<Enum>(i)));
  return names;
}

}  // namespace

Status ReadBandwidth(const JsonView& view, std::string_view key, double& result) {
  double value = 0;
  TIDEGATE_RETURN_IF_ERROR(view.Read(key, value));
  if (!(value >= kLeastBandwidthBps && value <= kMostBandwidthBps))
    return view.at(key).Bad("a bandwidth must be positive, from 1 to 1e18 byte/s, not " +
                            view.at(key).json().dump());
  result = value;
  return Status();
}

Status ReadLatency(const JsonView& view, std::string_view key, double& result) {
  double value = 0;
  TIDEGATE_RETURN_IF_ERROR(view.Read(key, value));
  if (!(value >= 0 && value <= kMostLatencySeconds))
    return view.at(key).Bad("a latency must be zero or more, up to 3600 seconds, not " +
                            view.at(key).json().dump());
  result = value;
  return Status();
}

JsonScope::JsonScope(TopologyParts parts, const TopologyLimits& limits, bool is_template)
    : parts_(std::move(parts)), limits_(limits), is_template_(is_template) {
  ids_.reserve(parts_.vertices.size());
  for (std::size_t v = 0; v < parts_.vertices.size(); ++v)
    ids_.emplace(parts_.vertices[v].id, static_cast<VertexId>(v));
}

Status JsonScope::ReadVertices(const JsonView& list) {
  TIDEGATE_RETURN_IF_ERROR(list.CheckArray());
  struct Entry {
    VertexId first;
    std::int64_t count;
  };
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto first = static_cast<VertexId>(parts_.vertices.size());
    TIDEGATE_RETURN_IF_ERROR(ReadVertex(list.at(i)));
    entries.push_back({first, static_cast<std::int64_t>(parts_.vertices.size()) - first});
  }
  // Only now, so that a vertex may lie in one that is described after it.
  for (std::size_t i = 0; i < entries.size(); ++i)
    TIDEGATE_RETURN_IF_ERROR(Contain(list.at(i), entries[i].first, entries[i].count));
  return Status();
}

Status JsonScope::ReadVertex(const JsonView& view) {
  TIDEGATE_RETURN_IF_ERROR(
      view.CheckObject({"id", "kind", "in", "count", "number", "rail", "bandwidth_Bps", "link"}));
  Vertex vertex;
  std::string kind_name;
  TIDEGATE_RETURN_IF_ERROR(view.Read("id", vertex.id));
  TIDEGATE_RETURN_IF_ERROR(view.Read("kind", kind_name));
  const std::optional<VertexKind> kind = ParseVertexKind(kind_name);
  if (!kind || *kind == VertexKind::kNode)
    return view.at("kind").Bad("no kind of vertex is called \"" + kind_name + "\"; there are " +
                               Names(&VertexKindName, 8, 1) + " (nodes stand in \"nodes\")");
  vertex.kind = *kind;
  const bool is_nic = *kind == VertexKind::kNic;
  for (const std::string_view key : {"rail", "bandwidth_Bps"}) {
    if (view.has(key) && !is_nic) return view.at(key).Bad("only a nic has that");
  }
  if (view.has("number") && (*kind == VertexKind::kRank || *kind == VertexKind::kSwitch))
    return view.at("number").Bad("ranks and switches have none; see \"placement\" for ranks");
  std::int64_t rail = kNone;
  std::int64_t number = kNone;
  std::int64_t count = 1;
  constexpr std::int64_t kInt32 = std::numeric_limits<std::int32_t>::max();
  TIDEGATE_RETURN_IF_ERROR(view.ReadOptional("rail", rail, 0, 4095));
  TIDEGATE_RETURN_IF_ERROR(view.ReadOptional("number", number, 0, kInt32 / 2));
  TIDEGATE_RETURN_IF_ERROR(view.ReadOptional("count", count, 1, std::int64_t{1} << 40));
  if (view.has("bandwidth_Bps"))
    TIDEGATE_RETURN_IF_ERROR(ReadBandwidth(view, "bandwidth_Bps", vertex.bandwidth_Bps));
  if (count > limits_.vertices - static_cast<std::int64_t>(parts_.vertices.size()))
    return view.Bad("too many vertices; " + Range(limits_.vertices, "in all"));
  const std::string id = vertex.id;
  for (std::int64_t i = 0; i < count; ++i) {
    if (view.has("count")) vertex.id = id + std::to_string(i);
    vertex.number = static_cast<std::int32_t>(
        number == kNone ? kNone : std::min(number + i, std::int64_t{kInt32}));
    vertex.rail =
        static_cast<std::int16_t>(rail == kNone ? kNone : std::min<std::int64_t>(rail + i, 4095));
    TIDEGATE_RETURN_IF_ERROR(AddVertex(view, vertex));
  }
  return Status();
}

Status JsonScope::AddVertex(const JsonView& view, Vertex vertex) {
  const bool is_new = ids_.emplace(vertex.id, static_cast<VertexId>(parts_.vertices.size())).second;
  if (!is_new)
    return view.at("id").Bad("the id " + Quoted(vertex.id) +
                             " is taken; choose another, or change that vertex in \"overrides\"");
  parts_.vertices.push_back(std::move(vertex));
  return Status();
}

Status JsonScope::Contain(const JsonView& view, VertexId first, std::int64_t count) {
  VertexId parent = is_template_ ? 0 : kNone;
  if (view.has("in")) {
    std::string name;
    TIDEGATE_RETURN_IF_ERROR(view.Read("in", name));
    const auto found = ids_.find(name);
    if (found == ids_.end()) return view.at("in").Bad("there is no vertex " + Quoted(name));
    parent = found->second;
  }
  std::vector<VertexId> ends;
  Figures figures;
  if (view.has("link")) {
    const JsonView link = view.at("link");
    TIDEGATE_RETURN_IF_ERROR(link.CheckObject(
        {"to", "latency_s", "bandwidth_Bps", "bandwidth_back_Bps", "shared", "path"}));
    TIDEGATE_RETURN_IF_ERROR(ReadFigures(link, false, figures));
    if (link.has("to")) {
      TIDEGATE_RETURN_IF_ERROR(ReadEnds(link, "to", ends));
    } else if (parent == kNone) {
      return link.Bad("the key \"to\" is missing, and the vertex lies in none");
    } else {
      ends.push_back(parent);
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const auto v = static_cast<VertexId>(first + i);
    Vertex& vertex = parts_.vertices[At(v)];
    vertex.parent = parent;
    if (!is_template_ && parent != kNone) {
      const std::string& outer = parts_.vertices[At(parent)].id;
      const std::string node = outer.substr(0, outer.find('/')) + "/";
      if (!vertex.id.starts_with(node))
        return view.at("id").Bad("the id of a vertex in " + Quoted(outer) + " must start with \"" +
                                 node + "\"");
    }
    for (const VertexId end : ends) {
      const JsonView link = view.at("link");
      TIDEGATE_RETURN_IF_ERROR(AddLink(link, v, end, figures));
    }
  }
  return Status();
}

Status JsonScope::ReadFigures(const JsonView& view, bool is_override, Figures& figures) const {
  if (!is_override || view.has("latency_s"))
    TIDEGATE_RETURN_IF_ERROR(ReadLatency(view, "latency_s", figures.latency_s));
  if (!is_override || view.has("bandwidth_Bps")) {
    TIDEGATE_RETURN_IF_ERROR(ReadBandwidth(view, "bandwidth_Bps", figures.bandwidth_Bps));
    figures.bandwidth_back_Bps = figures.bandwidth_Bps;
  }
  if (view.has("bandwidth_back_Bps"))
    TIDEGATE_RETURN_IF_ERROR(ReadBandwidth(view, "bandwidth_back_Bps", figures.bandwidth_back_Bps));
  TIDEGATE_RETURN_IF_ERROR(view.ReadOptional("shared", figures.shared));
  if (is_override && !view.has("path")) return Status();
  std::string name;
  TIDEGATE_RETURN_IF_ERROR(view.Read("path", name));
  const std::optional<PathClass> path = ParsePathClass(name);
  using enum PathClass;
  // The others describe what a path crosses, which the graph itself says.
  if (!path || *path == kNvb || *path == kPxb || *path == kPxn || *path == kPhb || *path == kDis)
    return view.at("path").Bad("no link has the path class \"" + name +
                               "\"; there are LOC, NVL, C2C, PIX, SYS, NET");
  figures.path = *path;
  return Status();
}

Status JsonScope::ReadEnds(const JsonView& link, std::string_view key,
                           std::vector<VertexId>& ends) const {
  if (!link.has(key) || !link.at(key).json().is_array()) {
    std::string name;
    TIDEGATE_RETURN_IF_ERROR(link.Read(key, name));
    const auto found = ids_.find(name);
    if (found == ids_.end()) return link.at(key).Bad("there is no vertex " + Quoted(name));
    ends.push_back(found->second);
    return Status();
  }
  const JsonView list = link.at(key);
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::string name;
    TIDEGATE_RETURN_IF_ERROR(list.at(i).Get(name));
    const auto found = ids_.find(name);
    if (found == ids_.end()) return list.at(i).Bad("there is no vertex " + Quoted(name));
    ends.push_back(found->second);
  }
  return Status();
}

void JsonScope::IndexLinks() {
  if (std::exchange(links_indexed_, true)) return;
  for (std::size_t i = 0; i < parts_.links.size(); ++i) {
    const auto name = parts_.link_ids.find(static_cast<std::int32_t>(i));
    if (name != parts_.link_ids.end()) {
      link_names_.insert(name->second);
    } else {
      joined_.insert(Pair(parts_.links[i].a, parts_.links[i].b));
    }
  }
}

Status JsonScope::ReadLinks(const JsonView& list) {
  TIDEGATE_RETURN_IF_ERROR(list.CheckArray());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonView view = list.at(i);
    TIDEGATE_RETURN_IF_ERROR(view.CheckObject({"id", "from", "to", "latency_s", "bandwidth_Bps",
                                               "bandwidth_back_Bps", "shared", "path"}));
    std::vector<VertexId> from;
    std::vector<VertexId> to;
    TIDEGATE_RETURN_IF_ERROR(ReadEnds(view, "from", from));
    TIDEGATE_RETURN_IF_ERROR(ReadEnds(view, "to", to));
    Figures figures;
    TIDEGATE_RETURN_IF_ERROR(ReadFigures(view, false, figures));
    if (view.has("id")) {
      if (from.size() != 1 || to.size() != 1)
        return view.at("id").Bad("several links cannot have one id; write them one by one");
      TIDEGATE_RETURN_IF_ERROR(NameLink(view));
    }
    for (const VertexId a : from) {
      for (const VertexId b : to) TIDEGATE_RETURN_IF_ERROR(AddLink(view, a, b, figures));
    }
  }
  return Status();
}

Status JsonScope::NameLink(const JsonView& view) {
  IndexLinks();
  std::string id;
  TIDEGATE_RETURN_IF_ERROR(view.Read("id", id));
  if (!link_names_.insert(id).second)
    return view.at("id").Bad("the id " + Quoted(id) + " is taken by another link");
  parts_.link_ids.emplace(static_cast<std::int32_t>(parts_.links.size()), id);
  return Status();
}

Status JsonScope::AddLink(const JsonView& view, VertexId a, VertexId b, const Figures& figures) {
  IndexLinks();
  const auto index = static_cast<std::int64_t>(parts_.links.size());
  if (index >= limits_.links) return view.Bad("too many links; " + Range(limits_.links, "in all"));
  if (a == b) return view.Bad("a link joins " + Quoted(parts_.vertices[At(a)].id) + " with itself");
  if (!parts_.link_ids.contains(static_cast<std::int32_t>(index)) &&
      !joined_.insert(Pair(a, b)).second)
    return view.Bad("two links join " + Quoted(parts_.vertices[At(a)].id) + " and " +
                    Quoted(parts_.vertices[At(b)].id) + "; give one of them an \"id\"");
  parts_.links.push_back({.a = a,
                          .b = b,
                          .latency_s = figures.latency_s,
                          .bandwidth_Bps = {figures.bandwidth_Bps, figures.bandwidth_back_Bps},
                          .shared = figures.shared,
                          .path = figures.path});
  return Status();
}

std::string JsonScope::DerivedName(std::size_t link) const {
  return parts_.vertices[At(parts_.links[link].a)].id + "--" +
         parts_.vertices[At(parts_.links[link].b)].id;
}

Status JsonScope::OverrideVertices(const JsonView& list) {
  TIDEGATE_RETURN_IF_ERROR(list.CheckArray());
  for (std::size_t i = 0; i < list.size(); ++i)
    TIDEGATE_RETURN_IF_ERROR(OverrideVertex(list.at(i)));
  return Status();
}

Status JsonScope::OverrideLinks(const JsonView& list) {
  TIDEGATE_RETURN_IF_ERROR(list.CheckArray());
  for (std::size_t i = 0; i < parts_.links.size(); ++i) {
    const auto name = parts_.link_ids.find(static_cast<std::int32_t>(i));
    link_of_name_.emplace(name == parts_.link_ids.end() ? DerivedName(i) : name->second, i);
  }
  for (std::size_t i = 0; i < list.size(); ++i) TIDEGATE_RETURN_IF_ERROR(OverrideLink(list.at(i)));
  return Status();
}

Status JsonScope::OverrideVertex(const JsonView& view) {
  TIDEGATE_RETURN_IF_ERROR(view.CheckObject({"id", "number", "rail", "bandwidth_Bps"}));
  std::string id;
  TIDEGATE_RETURN_IF_ERROR(view.Read("id", id));
  const auto found = ids_.find(id);
  if (found == ids_.end())
    return view.at("id").Bad("there is no vertex " + Quoted(id) + " to override");
  Vertex& vertex = parts_.vertices[At(found->second)];
  if ((view.has("rail") || view.has("bandwidth_Bps")) && vertex.kind != VertexKind::kNic)
    return view.Bad("only a nic has a rail and a bandwidth");
  if (view.has("number") && (vertex.kind == VertexKind::kRank))
    return view.at("number").Bad("ranks are numbered by \"placement\"");
  std::int64_t number = vertex.number;
  std::int64_t rail = vertex.rail;
  TIDEGATE_RETURN_IF_ERROR(
      view.ReadOptional("number", number, 0, std::numeric_limits<std::int32_t>::max() / 2));
  TIDEGATE_RETURN_IF_ERROR(view.ReadOptional("rail", rail, 0, 4095));
  if (view.has("bandwidth_Bps"))
    TIDEGATE_RETURN_IF_ERROR(ReadBandwidth(view, "bandwidth_Bps", vertex.bandwidth_Bps));
  vertex.number = static_cast<std::int32_t>(number);
  vertex.rail = static_cast<std::int16_t>(rail);
  return Status();
}

Status JsonScope::OverrideLink(const JsonView& view) {
  TIDEGATE_RETURN_IF_ERROR(view.CheckObject(
      {"id", "latency_s", "bandwidth_Bps", "bandwidth_back_Bps", "shared", "path"}));
  std::string id;
  TIDEGATE_RETURN_IF_ERROR(view.Read("id", id));
  const auto found = link_of_name_.find(id);
  if (found == link_of_name_.end())
    return view.at("id").Bad(
        "there is no link " + Quoted(id) +
        " to override; without an id of its own a link is called \"from--to\"");
  Link& link = parts_.links[found->second];
  Figures figures = {.latency_s = link.latency_s,
                     .bandwidth_Bps = link.bandwidth_Bps[0],
                     .bandwidth_back_Bps = link.bandwidth_Bps[1],
                     .shared = link.shared,
                     .path = link.path};
  TIDEGATE_RETURN_IF_ERROR(ReadFigures(view, true, figures));
  link.latency_s = figures.latency_s;
  link.bandwidth_Bps = {figures.bandwidth_Bps, figures.bandwidth_back_Bps};
  link.shared = figures.shared;
  link.path = figures.path;
  return Status();
}

}  // namespace tidegate
