#include "collectives/topology/max_flow.h"

#include <algorithm>
#include <numeric>

namespace tidegate {
namespace {

std::size_t At(std::int32_t index) { return static_cast<std::size_t>(index); }

}  // namespace

MaxFlow::MaxFlow(const Topology& topology, bool reversed)
    : topology_(topology), reversed_(reversed) {}

double MaxFlow::Bandwidth(LinkId id) const {
  return topology_.bandwidth_Bps(reversed_ ? Topology::reverse(id) : id);
}

bool MaxFlow::Level(VertexId sink) {
  level_.assign(topology_.vertices().size(), -1);
  queue_.clear();
  for (std::size_t v = 0; v < supply_.size(); ++v) {
    if (supply_[v] <= least_) continue;
    level_[v] = 0;
    queue_.push_back(static_cast<VertexId>(v));
  }
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    const VertexId v = queue_[i];
    for (const LinkId id : topology_.leaving(v)) {
      const VertexId to = topology_.to(id);
      if (residual_[At(id)] <= least_ || level_[At(to)] >= 0) continue;
      level_[At(to)] = level_[At(v)] + 1;
      queue_.push_back(to);
    }
  }
  return level_[At(sink)] >= 0;
}

double MaxFlow::Push(VertexId source, VertexId sink, double most) {
  path_.clear();
  for (VertexId at = source; at != sink;) {
    const auto leaving = topology_.leaving(at);
    std::int32_t& next = next_[At(at)];
    const auto leads_on = [&](LinkId id) {
      return residual_[At(id)] > least_ && level_[At(topology_.to(id))] == level_[At(at)] + 1;
    };
    while (At(next) < leaving.size() && !leads_on(leaving[At(next)])) ++next;
    if (At(next) < leaving.size()) {
      path_.push_back(leaving[At(next)]);
      at = topology_.to(path_.back());
      continue;
    }
    if (path_.empty()) return 0;
    at = topology_.from(path_.back());
    path_.pop_back();
    ++next_[At(at)];
  }
  double amount = most;
  for (const LinkId id : path_) amount = std::min(amount, residual_[At(id)]);
  for (const LinkId id : path_) {
    residual_[At(id)] -= amount;
    residual_[At(Topology::reverse(id))] += amount;
  }
  return amount;
}

double MaxFlow::Run(const std::vector<double>& supply, VertexId sink, double scale) {
  supply_ = supply;
  supply_[At(sink)] = 0;
  least_ = 1e-12 * std::accumulate(supply_.begin(), supply_.end(), 0.0);
  residual_.resize(At(topology_.link_end()));
  for (LinkId id = 0; id < topology_.link_end(); ++id) residual_[At(id)] = scale * Bandwidth(id);
  double flow = 0;
  while (Level(sink)) {
    next_.assign(topology_.vertices().size(), 0);
    for (std::size_t v = 0; v < supply_.size(); ++v) {
      while (supply_[v] > least_) {
        const double pushed = Push(static_cast<VertexId>(v), sink, supply_[v]);
        if (pushed <= 0) break;
        supply_[v] -= pushed;
        flow += pushed;
      }
    }
  }
  return flow;
}

double MaxFlow::CutBandwidth() const {
  double bandwidth = 0;
  for (LinkId id = 0; id < topology_.link_end(); ++id) {
    if (is_upstream(topology_.from(id)) && !is_upstream(topology_.to(id)))
      bandwidth += Bandwidth(id);
  }
  return bandwidth;
}

}  // namespace tidegate
