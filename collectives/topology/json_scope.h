#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "collectives/topology/topology.h"
#include "common/json/json_view.h"

namespace tidegate {

/// Vertices and links of one part of a description, whose ids refer to each other: a template of
/// nodes, or the top level. Internal to the reader.
class JsonScope {
 public:
  /// Starts with `parts`; with new ones there may be `limits` in all. In a template ids are local
  /// and the first vertex is the node; at the top level an id in node "n" starts with "n/".
  JsonScope(TopologyParts parts, const TopologyLimits& limits, bool is_template);

  Status ReadVertices(const JsonView& list);
  Status ReadLinks(const JsonView& list);
  /// Of ids that are there, the members that change.
  Status OverrideVertices(const JsonView& list);
  Status OverrideLinks(const JsonView& list);

  TopologyParts& parts() { return parts_; }

 private:
  struct Figures {
    double latency_s = 0;
    double bandwidth_Bps = 0;
    double bandwidth_back_Bps = 0;
    bool shared = false;
    PathClass path = PathClass::kLoc;
  };

  Status ReadVertex(const JsonView& view);
  Status AddVertex(const JsonView& view, Vertex vertex);
  Status Contain(const JsonView& view, VertexId first, std::int64_t count);
  Status ReadFigures(const JsonView& view, bool is_override, Figures& figures) const;
  Status ReadEnds(const JsonView& link, std::string_view key, std::vector<VertexId>& ends) const;
  Status AddLink(const JsonView& view, VertexId a, VertexId b, const Figures& figures);
  Status NameLink(const JsonView& view);
  Status OverrideVertex(const JsonView& view);
  Status OverrideLink(const JsonView& view);
  void IndexLinks();
  std::string DerivedName(std::size_t link) const;

  TopologyParts parts_;
  TopologyLimits limits_;
  bool is_template_;
  std::unordered_map<std::string, VertexId> ids_;
  bool links_indexed_ = false;
  std::unordered_set<std::uint64_t> joined_;  ///< Pairs that a link without a name joins.
  std::unordered_set<std::string> link_names_;
  std::unordered_map<std::string, std::size_t> link_of_name_;  ///< Filled for overrides.
};

/// A number in the range of topology.h.
Status ReadBandwidth(const JsonView& view, std::string_view key, double& result);
/// A number in the range of topology.h.
Status ReadLatency(const JsonView& view, std::string_view key, double& result);

}  // namespace tidegate
