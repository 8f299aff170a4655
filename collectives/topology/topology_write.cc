#include <string>
#include <utility>
#include <vector>

#include "collectives/topology/topology_json.h"
#include "common/json/parse_json.h"

namespace tidegate {
namespace {

/// Keeps keys in the order of writing.
using Json = nlohmann::ordered_json;

std::size_t At(std::int32_t index) { return static_cast<std::size_t>(index); }

Json LinkJson(const Link& link, const std::string* id, std::string from, std::string to) {
  Json json;
  if (id != nullptr) json["id"] = *id;
  json["from"] = std::move(from);
  json["to"] = std::move(to);
  json["path"] = PathClassName(link.path);
  json["latency_s"] = link.latency_s;
  json["bandwidth_Bps"] = link.bandwidth_Bps[0];
  if (link.bandwidth_Bps[1] != link.bandwidth_Bps[0])
    json["bandwidth_back_Bps"] = link.bandwidth_Bps[1];
  if (link.shared) json["shared"] = true;
  return json;
}

Json VertexJson(const Vertex& vertex, std::string id, const std::string& parent) {
  Json json;
  json["id"] = std::move(id);
  json["kind"] = VertexKindName(vertex.kind);
  if (!parent.empty()) json["in"] = parent;
  if (vertex.number != kNone && vertex.kind != VertexKind::kRank) json["number"] = vertex.number;
  if (vertex.rail != kNone) json["rail"] = vertex.rail;
  if (vertex.bandwidth_Bps > 0) json["bandwidth_Bps"] = vertex.bandwidth_Bps;
  return json;
}

/// One entry a line.
std::string Lines(const std::vector<Json>& entries, const std::string& indent) {
  std::string text;
  for (const Json& entry : entries) {
    text += (text.empty() ? "" : ",") + ("\n" + indent) +
            entry.dump(-1, ' ', true, Json::error_handler_t::replace);
  }
  return "[" + text + "]";
}

std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

class Writer {
 public:
  explicit Writer(const Topology& topology) : topology_(topology) {}

  std::string Write() {
    std::string text = "{\n\"tidegate_topology\": 1";
    if (!topology_.name().empty()) text += ",\n\"name\": " + Quoted(topology_.name());
    text += ",\n\"nodes\": [" + Nodes() + "]";
    for (VertexId v = topology_.node_begin(topology_.nodes());
         v < static_cast<VertexId>(topology_.vertices().size()); ++v)
      Loose(v);
    for (; next_link_ < topology_.links().size(); ++next_link_) LooseLink(next_link_);
    if (!vertices_.empty()) text += ",\n\"vertices\": " + Lines(vertices_, " ");
    if (!links_.empty()) text += ",\n\"links\": " + Lines(links_, " ");
    return text + Placed() + "\n}\n";
  }

 private:
  const std::string& Id(VertexId v) const { return topology_.vertex(v).id; }
  const std::string* LinkId(std::size_t link) const {
    const auto& ids = topology_.parts().link_ids;
    const auto found = ids.find(static_cast<std::int32_t>(link));
    return found == ids.end() ? nullptr : &found->second;
  }
  std::string Parent(VertexId v) const {
    const VertexId parent = topology_.vertex(v).parent;
    return parent == kNone ? "" : Id(parent);
  }
  void Loose(VertexId v) { vertices_.push_back(VertexJson(topology_.vertex(v), Id(v), Parent(v))); }
  void LooseLink(std::size_t i) {
    const Link& link = topology_.links()[i];
    links_.push_back(LinkJson(link, LinkId(i), Id(link.a), Id(link.b)));
  }

  /// Nodes of equal make whose names count on are one entry.
  std::string Nodes() {
    std::string text;
    std::string last_body;
    std::string stem;
    std::int64_t first = 0;
    std::int64_t count = 0;
    const auto flush = [&] {
      if (count == 0) return;
      text += text.empty() ? "\n" : ",\n";
      text += " {\"id\": " + Quoted(stem);
      if (first >= 0) text += ", \"count\": " + std::to_string(count);
      if (first > 0) text += ", \"first\": " + std::to_string(first);
      text += last_body + "}";
    };
    for (int node = 0; node < topology_.nodes(); ++node) {
      std::string body = Body(node);
      const auto [name, number] = Split(Id(topology_.node_vertex(node)));
      if (count > 0 && number >= 0 && name == stem && number == first + count &&
          body == last_body) {
        ++count;
        continue;
      }
      flush();
      last_body = std::move(body);
      stem = name;
      first = number;
      count = 1;
    }
    flush();
    return text;
  }

  /// "node12" is 12th of "node"; a name without a number of its own has none (-1).
  static std::pair<std::string, std::int64_t> Split(const std::string& id) {
    const std::size_t end = id.find_last_not_of("0123456789") + 1;
    const std::string digits = id.substr(end);
    const bool counts =
        end > 0 && !digits.empty() && digits.size() <= 9 && (digits == "0" || digits[0] != '0');
    if (!counts) return {id, -1};
    return {id.substr(0, end), std::stoll(digits)};
  }

  /// Vertices and links of a node with ids of their own.
  std::string Body(int node) {
    const VertexId self = topology_.node_vertex(node);
    const std::string prefix = Id(self) + "/";
    const auto local = [&](VertexId v) {
      if (v == self) return std::string("node");
      return Id(v).starts_with(prefix) ? Id(v).substr(prefix.size()) : std::string();
    };
    std::vector<Json> vertices;
    std::vector<Json> links;
    for (VertexId v = topology_.node_begin(node); v < topology_.node_begin(node + 1); ++v) {
      if (v == self) continue;
      const Vertex& vertex = topology_.vertex(v);
      const std::string id = local(v);
      if (id.empty() || id == "node") {
        Loose(v);
        continue;
      }
      vertices.push_back(VertexJson(vertex, id, vertex.parent == self ? "" : local(vertex.parent)));
    }
    for (; next_link_ < topology_.links().size(); ++next_link_) {
      const Link& link = topology_.links()[next_link_];
      if (topology_.vertex(link.a).node != node || topology_.vertex(link.b).node != node) break;
      const std::string* const id = LinkId(next_link_);
      if (local(link.a).empty() || local(link.b).empty() ||
          (id != nullptr && !id->starts_with(prefix))) {
        LooseLink(next_link_);
        continue;
      }
      const std::string own = id == nullptr ? "" : id->substr(prefix.size());
      links.push_back(LinkJson(link, id == nullptr ? nullptr : &own, local(link.a), local(link.b)));
    }
    std::string text;
    if (!vertices.empty()) text += ",\n  \"vertices\": " + Lines(vertices, "   ");
    if (!links.empty()) text += ",\n  \"links\": " + Lines(links, "   ");
    return text;
  }

  /// "placement", where ranks are not numbered in the order of the vertices.
  std::string Placed() const {
    Json numbers = Json::array();
    bool is_block = true;
    for (const Vertex& vertex : topology_.vertices()) {
      if (vertex.kind != VertexKind::kRank) continue;
      is_block = is_block && At(vertex.number) == numbers.size();
      numbers.push_back(vertex.number);
    }
    return is_block ? "" : ",\n\"placement\": " + numbers.dump();
  }

  const Topology& topology_;
  std::size_t next_link_ = 0;  ///< Links are in the order of their nodes.
  std::vector<Json> vertices_;
  std::vector<Json> links_;
};

}  // namespace

std::string FormatTopology(const Topology& topology) { return Writer(topology).Write(); }

Status DumpTopology(const Topology& topology, const std::string& path) {
  Status written = ReplaceTextFile(path, FormatTopology(topology));
  if (written.ok()) return written;
  return Status(written.code(), "cannot write the topology to " + path + ": " + written.message() +
                                    "; choose a path that can be written");
}

}  // namespace tidegate
