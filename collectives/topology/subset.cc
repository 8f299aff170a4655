#include "collectives/topology/subset.h"

#include <string>
#include <utility>
#include <vector>

namespace tidegate {

Result<Topology> SelectRanks(const Topology& topology, std::span<const int> members) {
  std::vector<std::int32_t> number_of(static_cast<std::size_t>(topology.ranks()), kNone);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const int member = members[i];
    if (member < 0 || member >= topology.ranks())
      return Status(StatusCode::kInvalidArgument,
                    "rank " + std::to_string(member) + " of a group is none of the " +
                        std::to_string(topology.ranks()) + " ranks described");
    std::int32_t& number = number_of[static_cast<std::size_t>(member)];
    if (number != kNone)
      return Status(StatusCode::kInvalidArgument,
                    "rank " + std::to_string(member) + " is named twice in a group");
    number = static_cast<std::int32_t>(i);
  }
  const TopologyParts& all = topology.parts();
  TopologyParts some;
  some.name = all.name;
  std::vector<VertexId> moved(all.vertices.size(), kNone);
  for (std::size_t v = 0; v < all.vertices.size(); ++v) {
    Vertex vertex = all.vertices[v];
    if (vertex.kind == VertexKind::kRank) {
      vertex.number = number_of[static_cast<std::size_t>(vertex.number)];
      if (vertex.number == kNone) continue;
    }
    moved[v] = static_cast<VertexId>(some.vertices.size());
    some.vertices.push_back(std::move(vertex));
  }
  // What contains a rank is no rank, so that it is still there.
  for (Vertex& vertex : some.vertices)
    if (vertex.parent != kNone) vertex.parent = moved[static_cast<std::size_t>(vertex.parent)];
  for (std::size_t l = 0; l < all.links.size(); ++l) {
    Link link = all.links[l];
    link.a = moved[static_cast<std::size_t>(link.a)];
    link.b = moved[static_cast<std::size_t>(link.b)];
    if (link.a == kNone || link.b == kNone) continue;
    if (const auto name = all.link_ids.find(static_cast<std::int32_t>(l));
        name != all.link_ids.end())
      some.link_ids.emplace(static_cast<std::int32_t>(some.links.size()), name->second);
    some.links.push_back(link);
  }
  return Topology::Make(std::move(some));
}

}  // namespace tidegate
