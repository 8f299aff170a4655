#pragma once

#include <cstdint>
#include <vector>

#include "collectives/topology/topology.h"

namespace tidegate {

/// Maximum flow from several vertices to one over the links of a topology (Dinic 1970, in doubles).
/// A link carries its bandwidth each way, whether shared or not. One thread at a time.
class MaxFlow {
 public:
  /// `reversed` turns all links round. Refers to the topology.
  explicit MaxFlow(const Topology& topology, bool reversed = false);

  /// Sends as much as possible of supply[v] (by vertex; what `sink` has does not count) to `sink`,
  /// with capacities of `scale` times the bandwidth. Relative error about 1e-12.
  /// Cost: a few times O(links) on clusters.
  double Run(const std::vector<double>& supply, VertexId sink, double scale);

  /// After Run: whether `v` is on the sources' side of a least cut.
  bool is_upstream(VertexId v) const { return level_[static_cast<std::size_t>(v)] >= 0; }
  /// After Run: bandwidth from the sources' side of that cut to the other, byte/s.
  double CutBandwidth() const;

 private:
  bool Level(VertexId sink);
  double Push(VertexId source, VertexId sink, double most);
  double Bandwidth(LinkId id) const;

  const Topology& topology_;
  bool reversed_;
  double least_ = 0;  ///< What is treated as nothing.
  std::vector<double> supply_;
  std::vector<double> residual_;  ///< By directed link.
  std::vector<std::int32_t> level_;
  std::vector<std::int32_t> next_;  ///< By vertex: which of its links to try next.
  std::vector<VertexId> queue_;
  std::vector<LinkId> path_;
};

}  // namespace tidegate
