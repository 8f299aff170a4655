#include "collectives/simulator/orbits.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

namespace tidegate {
namespace {

std::size_t At(std::int32_t index) { return static_cast<std::size_t>(index); }

/// Finds where the shift takes every vertex: ranks by their numbers, the rest of a node by its
/// place, switches by what they join.
class Automorphism {
 public:
  Automorphism(const Topology& topology, int shift)
      : topology_(topology),
        shift_(shift),
        image_(topology.vertices().size(), kNone),
        node_image_(At(topology.nodes()), kNone) {}

  Status Find() {
    for (int rank = 0; rank < topology_.ranks(); ++rank) {
      const int other = (rank + shift_) % topology_.ranks();
      TIDEGATE_RETURN_IF_ERROR(Map(topology_.rank_vertex(rank), topology_.rank_vertex(other)));
      std::int32_t& image = node_image_[At(topology_.node_of(rank))];
      if (image == kNone) image = topology_.node_of(other);
      if (image != topology_.node_of(other))
        return Asymmetric("ranks of node " + std::to_string(topology_.node_of(rank)) +
                          " come to several nodes");
    }
    for (int node = 0; node < topology_.nodes(); ++node) TIDEGATE_RETURN_IF_ERROR(MapNode(node));
    for (VertexId v = 0; v < topology_.node_begin(topology_.nodes()); ++v) queue_.push_back(v);
    // It grows meanwhile. NOLINTNEXTLINE(modernize-loop-convert)
    for (std::size_t i = 0; i < queue_.size(); ++i) TIDEGATE_RETURN_IF_ERROR(MapAround(queue_[i]));
    return MapLinks();
  }

  Orbits Close() const {
    Orbits orbits;
    orbits.shift = shift_;
    std::tie(orbits.link, orbits.links) = Cycles(link_image_);
    std::tie(orbits.node, orbits.nodes) = Cycles(node_image_);
    return orbits;
  }

 private:
  Status Asymmetric(const std::string& why) const {
    return Status(StatusCode::kInvalidArgument,
                  "the cluster is not the same after a shift of all ranks by " +
                      std::to_string(shift_) + ": " + why +
                      "; simulate every rank (orbit 0) or choose another orbit");
  }

  Status Map(VertexId from, VertexId to) {
    const Vertex& a = topology_.vertex(from);
    const Vertex& b = topology_.vertex(to);
    if (a.kind != b.kind || a.rail != b.rail || a.bandwidth_Bps != b.bandwidth_Bps)
      return Asymmetric("\"" + a.id + "\" differs from \"" + b.id + "\"");
    if (image_[At(from)] != kNone && image_[At(from)] != to)
      return Asymmetric("\"" + a.id + "\" would be \"" + b.id + "\" and \"" +
                        topology_.vertex(image_[At(from)]).id + "\"");
    image_[At(from)] = to;
    return Status();
  }

  Status MapNode(int node) {
    std::int32_t& image = node_image_[At(node)];
    if (image == kNone) image = node;  // Without ranks: stays.
    const auto others = [&](int of) {
      std::vector<VertexId> found;
      for (VertexId v = topology_.node_begin(of); v < topology_.node_begin(of + 1); ++v)
        if (topology_.vertex(v).kind != VertexKind::kRank) found.push_back(v);
      return found;
    };
    const std::vector<VertexId> here = others(node);
    const std::vector<VertexId> there = others(image);
    if (here.size() != there.size())
      return Asymmetric("nodes " + std::to_string(node) + " and " + std::to_string(image) +
                        " consist of different parts");
    for (std::size_t i = 0; i < here.size(); ++i) TIDEGATE_RETURN_IF_ERROR(Map(here[i], there[i]));
    return Status();
  }

  /// Switches that `v` is linked to go where its image is linked to, in order.
  Status MapAround(VertexId v) {
    std::vector<VertexId> here;
    std::vector<VertexId> there;
    for (const LinkId id : topology_.leaving(v))
      if (image_[At(topology_.to(id))] == kNone) here.push_back(topology_.to(id));
    if (here.empty()) return Status();
    for (const LinkId id : topology_.leaving(image_[At(v)]))
      if (!IsImage(topology_.to(id))) there.push_back(topology_.to(id));
    if (here.size() != there.size())
      return Asymmetric("\"" + topology_.vertex(v).id + "\" is joined to other switches than \"" +
                        topology_.vertex(image_[At(v)]).id + "\"");
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (image_[At(here[i])] == kNone) queue_.push_back(here[i]);
      TIDEGATE_RETURN_IF_ERROR(Map(here[i], there[i]));
      is_image_[there[i]] = true;
    }
    return Status();
  }
  bool IsImage(VertexId v) const {
    return v < topology_.node_begin(topology_.nodes()) || is_image_.contains(v);
  }

  Status MapLinks() {
    std::map<std::pair<VertexId, VertexId>, std::vector<LinkId>> by_ends;
    for (LinkId id = 0; id < topology_.link_end(); ++id)
      by_ends[{topology_.from(id), topology_.to(id)}].push_back(id);
    link_image_.assign(At(topology_.link_end()), kNone);
    for (const auto& [ends, links] : by_ends) {
      const auto images = by_ends.find({image_[At(ends.first)], image_[At(ends.second)]});
      const bool found = images != by_ends.end() && images->second.size() == links.size();
      for (std::size_t i = 0; i < links.size(); ++i) {
        if (!found || !AreAlike(links[i], images->second[i]))
          return Asymmetric("no link is to \"" + topology_.vertex(image_[At(ends.first)]).id +
                            "\" what \"" + topology_.link_name(links[i]) + "\" is to \"" +
                            topology_.vertex(ends.first).id + "\"");
        link_image_[At(links[i])] = images->second[i];
      }
    }
    return Status();
  }

  bool AreAlike(LinkId a, LinkId b) const {
    const Link& one = topology_.link(a);
    const Link& other = topology_.link(b);
    return topology_.bandwidth_Bps(a) == topology_.bandwidth_Bps(b) &&
           one.latency_s == other.latency_s && one.shared == other.shared && one.path == other.path;
  }

  /// By element of a permutation: the lowest of its cycle, and the cycle's length.
  static std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> Cycles(
      const std::vector<std::int32_t>& permutation) {
    std::vector<std::int32_t> lowest(permutation.size(), kNone);
    std::vector<std::int32_t> length(permutation.size(), 0);
    for (std::int32_t start = 0; At(start) < permutation.size(); ++start) {
      if (lowest[At(start)] != kNone) continue;
      std::int32_t count = 0;
      for (std::int32_t i = start; lowest[At(i)] == kNone; i = permutation[At(i)]) {
        lowest[At(i)] = start;
        ++count;
      }
      for (std::int32_t i = start; length[At(i)] == 0; i = permutation[At(i)])
        length[At(i)] = count;
    }
    return {std::move(lowest), std::move(length)};
  }

  const Topology& topology_;
  const int shift_;
  std::vector<VertexId> image_;
  std::vector<std::int32_t> node_image_;
  std::vector<LinkId> link_image_;
  std::map<VertexId, bool> is_image_;
  std::vector<VertexId> queue_;
};

}  // namespace

Result<Orbits> FindOrbits(const Topology& topology, int shift) {
  if (shift < 1 || topology.ranks() % shift != 0)
    return Status(StatusCode::kInvalidArgument, "an orbit of " + std::to_string(shift) + " of " +
                                                    std::to_string(topology.ranks()) +
                                                    " ranks; it must divide them");
  Automorphism automorphism(topology, shift);
  TIDEGATE_RETURN_IF_ERROR(automorphism.Find());
  return automorphism.Close();
}

}  // namespace tidegate
