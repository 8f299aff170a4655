#include "collectives/topology/bounds.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <limits>
#include <map>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "collectives/topology/max_flow.h"
#include "collectives/topology/symmetry.h"
#include "common/check.h"

namespace tidegate {
namespace {

/// Kinds of rank that are looked at; a flow for each.
constexpr std::size_t kMostSinks = 16;
/// Newton's method needs a handful; whatever it has then is a bound.
constexpr int kMostRounds = 100;
constexpr const char* kNothingMoves = "one rank moves nothing";

std::size_t At(std::int32_t index) { return static_cast<std::size_t>(index); }

std::string Short(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

/// Bandwidth into and out of a part of the machine that holds ranks.
struct Part {
  std::string name;
  int ranks = 0;
  double in_Bps = 0;
  double out_Bps = 0;
};

/// Adds the links between vertices of different parts; `part_of` is kNone for those in none.
void AddCrossings(const Topology& topology, const std::vector<std::int32_t>& part_of,
                  std::vector<Part>& parts) {
  for (LinkId id = 0; id < topology.link_end(); ++id) {
    const std::int32_t from = part_of[At(topology.from(id))];
    const std::int32_t to = part_of[At(topology.to(id))];
    if (from == to) continue;
    if (from != kNone) parts[At(from)].out_Bps += topology.bandwidth_Bps(id);
    if (to != kNone) parts[At(to)].in_Bps += topology.bandwidth_Bps(id);
  }
}

std::vector<Part> RankParts(const Topology& topology) {
  std::vector<Part> parts;
  std::vector<std::int32_t> part_of(topology.vertices().size(), kNone);
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    part_of[At(topology.rank_vertex(rank))] = rank;
    parts.push_back({.name = "rank " + std::to_string(rank), .ranks = 1});
  }
  AddCrossings(topology, part_of, parts);
  return parts;
}

std::vector<Part> WithRanks(std::vector<Part> parts) {
  std::erase_if(parts, [](const Part& part) { return part.ranks == 0; });
  return parts;
}

std::vector<Part> NodeParts(const Topology& topology) {
  std::vector<Part> parts;
  std::vector<std::int32_t> part_of;
  part_of.reserve(topology.vertices().size());
  parts.reserve(At(topology.nodes()));
  for (int node = 0; node < topology.nodes(); ++node)
    parts.push_back({.name = "node \"" + topology.vertex(topology.node_vertex(node)).id + "\""});
  for (const Vertex& vertex : topology.vertices()) {
    part_of.push_back(vertex.node);
    if (vertex.kind == VertexKind::kRank) ++parts[At(vertex.node)].ranks;
  }
  AddCrossings(topology, part_of, parts);
  return WithRanks(std::move(parts));
}

/// Nodes on the same switches, with these.
std::vector<Part> GroupParts(const Topology& topology) {
  std::vector<std::vector<VertexId>> switches(At(topology.nodes()));
  for (LinkId id = 0; id < topology.link_end(); ++id) {
    const std::int32_t node = topology.vertex(topology.from(id)).node;
    const VertexId to = topology.to(id);
    if (node != kNone && topology.vertex(to).node == kNone) switches[At(node)].push_back(to);
  }
  std::vector<Part> parts;
  std::vector<std::int32_t> part_of(topology.vertices().size(), kNone);
  std::vector<std::int32_t> group_of_node(At(topology.nodes()));
  std::map<std::vector<VertexId>, std::int32_t> groups;
  for (std::size_t node = 0; node < switches.size(); ++node) {
    std::ranges::sort(switches[node]);
    const auto [group, is_new] =
        groups.try_emplace(switches[node], static_cast<std::int32_t>(parts.size()));
    group_of_node[node] = group->second;
    if (!is_new) continue;
    const VertexId first = topology.node_vertex(static_cast<int>(node));
    parts.push_back({.name = "the switches of node \"" + topology.vertex(first).id + "\""});
    // A switch that several groups share belongs to the first.
    for (const VertexId v : switches[node]) {
      if (part_of[At(v)] == kNone) part_of[At(v)] = group->second;
    }
  }
  for (VertexId v = 0; v < static_cast<VertexId>(part_of.size()); ++v) {
    const Vertex& vertex = topology.vertex(v);
    if (vertex.node == kNone) continue;
    part_of[At(v)] = group_of_node[At(vertex.node)];
    if (vertex.kind == VertexKind::kRank) ++parts[At(part_of[At(v)])].ranks;
  }
  AddCrossings(topology, part_of, parts);
  return WithRanks(std::move(parts));
}

std::array<std::vector<Part>, 3> Divisions(const Topology& topology) {
  return {RankParts(topology), NodeParts(topology), GroupParts(topology)};
}

/// A few ranks that stand for all: one of each colour, those with the least bandwidth first.
std::vector<int> Sinks(const Topology& topology, bool reversed, VertexId distinct = kNone) {
  std::vector<int> sinks = RanksOfEachColour(topology, RefineColours(topology, distinct));
  std::vector<double> into(sinks.size());
  const std::vector<Part> ranks = RankParts(topology);
  std::vector<double> node_in(At(topology.nodes()));
  for (LinkId id = 0; id < topology.link_end(); ++id) {
    const std::int32_t node = topology.vertex(topology.to(id)).node;
    if (node != kNone && topology.vertex(topology.from(id)).node != node)
      node_in[At(node)] += topology.bandwidth_Bps(reversed ? Topology::reverse(id) : id);
  }
  const auto key = [&](int rank) {
    const Part& part = ranks[At(rank)];
    return std::pair(node_in[At(topology.node_of(rank))], reversed ? part.out_Bps : part.in_Bps);
  };
  std::ranges::stable_sort(sinks, {}, key);
  if (sinks.size() > kMostSinks) sinks.resize(kMostSinks);
  return sinks;
}

/// What lies downstream of the cut that `flow` found.
std::string Describe(const Topology& topology, const MaxFlow& flow, int sent, double bandwidth,
                     bool reversed) {
  std::vector<int> count(At(topology.nodes()));
  int missing = 0;
  int last = kNone;
  bool same_place = true;  // On all of their nodes.
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    if (flow.is_upstream(topology.rank_vertex(rank))) continue;
    ++missing;
    const Placement& placement = topology.placement();
    same_place =
        same_place && (last == kNone || placement.local_of(rank) == placement.local_of(last));
    last = rank;
    ++count[At(topology.node_of(rank))];
  }
  const auto nodes = std::ranges::count_if(count, [](int ranks) { return ranks > 0; });
  const int node = topology.node_of(last);
  const std::string node_name = "\"" + topology.vertex(topology.node_vertex(node)).id + "\"";
  std::string where = std::to_string(missing) + " ranks of " + std::to_string(nodes) + " nodes";
  std::string kind = "cut";
  if (missing == 1) {
    kind = "rank cut";
    where = "rank " + std::to_string(last);
  } else if (nodes == 1) {
    const std::span<const int> all =
        topology.placement().ranks_on(topology.placement().node_of(last));
    const bool is_whole = missing == static_cast<int>(all.size());
    kind = is_whole ? "node cut" : "cut";
    where =
        is_whole ? "node " + node_name : std::to_string(missing) + " ranks of node " + node_name;
  } else if (same_place && missing == topology.nodes()) {
    kind = "rail cut";
    where = "the ranks in place " + std::to_string(topology.placement().local_of(last)) +
            " of all nodes";
  }
  return kind + ": the shards of " + std::to_string(sent) + " ranks over " + Short(bandwidth) +
         " byte/s " + (reversed ? "out of " : "into ") + where;
}

/// The cut that takes longest to pass what lies beyond it on to one of `sinks`: supply[v] of vertex
/// v, in any unit. Time in that unit over byte/s; 0 where no sink lacks anything.
Bound SlowestCut(const Topology& topology, const std::vector<double>& supply,
                 std::span<const int> sinks, bool reversed) {
  std::vector<VertexId> senders;
  double all = 0;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const VertexId v = topology.rank_vertex(rank);
    all += supply[At(v)];
    if (supply[At(v)] > 0) senders.push_back(v);
  }
  Bound bound;
  MaxFlow flow(topology, reversed);
  double& time = bound.seconds;
  for (const int sink : sinks) {
    const VertexId at = topology.rank_vertex(sink);
    const auto others = static_cast<int>(senders.size()) - (supply[At(at)] > 0 ? 1 : 0);
    if (others == 0) continue;
    if (time == 0) {
      double into = 0;
      for (const LinkId id : topology.leaving(at))
        into += topology.bandwidth_Bps(reversed ? id : Topology::reverse(id));
      time = (all - supply[At(at)]) / into;
      bound.cut = "rank cut: the shards of " + std::to_string(others) + " ranks over " +
                  Short(into) + " byte/s " + (reversed ? "out of" : "into") + " rank " +
                  std::to_string(sink);
    }
    // Newton's method on the parametric cut: each round finds a cut that needs more time.
    for (int round = 0; round < kMostRounds; ++round) {
      flow.Run(supply, at, time);
      if (flow.is_upstream(at)) break;  // no cut: cannot happen, since every link is finite
      int count = 0;
      double sent = 0;
      for (const VertexId v : senders) {
        if (!flow.is_upstream(v)) continue;
        ++count;
        sent += supply[At(v)];
      }
      const double bandwidth = flow.CutBandwidth();
      const double needed = count == 0 ? 0 : sent / bandwidth;
      if (needed <= time * (1 + 1e-13)) break;
      time = needed;
      bound.cut = Describe(topology, flow, count, bandwidth, reversed);
    }
  }
  return bound;
}

/// What every rank needs of all others, or with links turned round all others of it.
Bound EveryRankBound(const Topology& topology, double bytes, bool reversed) {
  TIDEGATE_CHECK(bytes >= 0);
  const int ranks = topology.ranks();
  if (ranks == 1) return {.cut = kNothingMoves};
  // In units of a shard.
  std::vector<double> supply(topology.vertices().size());
  for (int rank = 0; rank < ranks; ++rank) supply[At(topology.rank_vertex(rank))] = 1;
  Bound bound = SlowestCut(topology, supply, Sinks(topology, reversed), reversed);
  bound.seconds *= bytes / ranks;
  return bound;
}

/// What the root alone needs of all others, or with links turned round all others of it.
Bound RootBound(const Topology& topology, std::span<const double> shards, int root, bool reversed) {
  TIDEGATE_CHECK(root >= 0 && root < topology.ranks());
  TIDEGATE_CHECK(shards.size() == 1 || shards.size() == At(topology.ranks()));
  std::vector<double> supply(topology.vertices().size());
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const double shard = shards[shards.size() == 1 ? 0 : At(rank)];
    TIDEGATE_CHECK(shard >= 0);
    supply[At(topology.rank_vertex(rank))] = shard;
  }
  Bound bound = SlowestCut(topology, supply, std::array{root}, reversed);
  if (bound.cut.empty()) bound.cut = topology.ranks() == 1 ? kNothingMoves : "there are no bytes";
  return bound;
}

void Raise(Bound& bound, double seconds, const std::string& cut) {
  if (seconds > bound.seconds) bound = {.seconds = seconds, .cut = cut};
}

/// All bytes from the root to the rank that is hardest to reach, or with links turned round from
/// the rank that reaches it least.
Bound SlowestRankBound(const Topology& topology, double bytes, int root, bool reversed) {
  TIDEGATE_CHECK(bytes >= 0 && root >= 0 && root < topology.ranks());
  const VertexId source = topology.rank_vertex(root);
  double out = 0;
  for (const LinkId id : topology.leaving(source))
    out += topology.bandwidth_Bps(reversed ? Topology::reverse(id) : id);
  std::vector<double> supply(topology.vertices().size());
  supply[At(source)] = 2 * out;  // more than can leave, so that the cut is a cut of links
  MaxFlow flow(topology, reversed);
  Bound bound;
  for (const int rank : Sinks(topology, reversed, source)) {
    if (rank == root) continue;
    const double rate = flow.Run(supply, topology.rank_vertex(rank), 1);
    Raise(bound, bytes / rate,
          "all bytes over " + Short(rate) + " byte/s from rank " +
              std::to_string(reversed ? rank : root) + " to rank " +
              std::to_string(reversed ? root : rank));
  }
  return bound;
}

}  // namespace

Bound AllGatherBound(const Topology& topology, double bytes) {
  return EveryRankBound(topology, bytes, false);
}

Bound ReduceScatterBound(const Topology& topology, double bytes) {
  return EveryRankBound(topology, bytes, true);
}

Bound GatherBound(const Topology& topology, std::span<const double> shards, int root) {
  return RootBound(topology, shards, root, false);
}

Bound ScatterBound(const Topology& topology, std::span<const double> shards, int root) {
  return RootBound(topology, shards, root, true);
}

Bound BroadcastBound(const Topology& topology, double bytes, int root) {
  return SlowestRankBound(topology, bytes, root, false);
}

Bound ReduceBound(const Topology& topology, double bytes, int root) {
  return SlowestRankBound(topology, bytes, root, true);
}

Bound AllReduceBound(const Topology& topology, double bytes) {
  TIDEGATE_CHECK(bytes >= 0);
  Bound bound;
  for (const std::vector<Part>& parts : Divisions(topology)) {
    if (parts.size() < 2) continue;
    double into_all = 0;
    for (const Part& part : parts) {
      into_all += part.in_Bps;
      const double least = std::min(part.in_Bps, part.out_Bps);
      Raise(bound, bytes / least,
            "all bytes into and out of " + part.name + " over " + Short(least) + " byte/s");
    }
    const auto count = static_cast<double>(parts.size());
    Raise(bound, 2 * (count - 1) * bytes / into_all,
          "2 x " + Short(count - 1) + " times the bytes over " + Short(into_all) + " byte/s into " +
              parts.front().name + " and " + Short(count - 1) + " like it");
  }
  return bound;
}

Bound AllToAllBound(const Topology& topology, double bytes) {
  TIDEGATE_CHECK(bytes >= 0);
  Bound bound;
  const double ranks = topology.ranks();
  for (const std::vector<Part>& parts : Divisions(topology)) {
    if (parts.size() < 2) continue;
    for (const Part& part : parts) {
      const double crossing = part.ranks * (ranks - part.ranks) * bytes / ranks;
      const double least = std::min(part.in_Bps, part.out_Bps);
      Raise(
          bound, crossing / least,
          Short(crossing) + " bytes each way over " + Short(least) + " byte/s around " + part.name);
    }
  }
  return bound;
}

double LatencyBound(const Topology& topology) {
  if (topology.ranks() == 1) return 0;
  // Whatever the way, it takes a link at each of two ranks.
  double least = std::numeric_limits<double>::infinity();
  double second = least;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    double own = std::numeric_limits<double>::infinity();
    for (const LinkId id : topology.leaving(topology.rank_vertex(rank)))
      own = std::min(own, topology.link(id).latency_s);
    if (own < least) std::swap(own, least);
    second = std::min(second, own);
  }
  double nearest = least + second;
  const std::vector<int> sources = RanksOfEachColour(topology, RefineColours(topology));
  if (sources.size() <= kMostSinks) {
    nearest = std::numeric_limits<double>::infinity();
    for (const int source : sources) {
      std::vector<double> distance(topology.vertices().size(),
                                   std::numeric_limits<double>::infinity());
      using Entry = std::pair<double, VertexId>;
      std::priority_queue<Entry, std::vector<Entry>, std::greater<>> left;
      left.emplace(0, topology.rank_vertex(source));
      while (!left.empty()) {
        const auto [latency, v] = left.top();
        left.pop();
        if (latency >= std::min(distance[At(v)], nearest)) continue;
        distance[At(v)] = latency;
        if (topology.vertex(v).kind == VertexKind::kRank && v != topology.rank_vertex(source)) {
          nearest = latency;
          break;
        }
        for (const LinkId id : topology.leaving(v))
          left.emplace(latency + topology.link(id).latency_s, topology.to(id));
      }
    }
  }
  return std::bit_width(static_cast<unsigned>(topology.ranks()) - 1U) * nearest;
}

}  // namespace tidegate
