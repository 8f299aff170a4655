#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "collectives/topology/topology.h"

namespace tidegate {

/// A time that no plan of a collective beats on a machine, by its bandwidth alone.
struct Bound {
  double seconds = 0;
  /// What binds, readable: "node cut: 8 ranks behind 4e+11 byte/s into \"node1\"".
  std::string cut;
};

/// All-gather of `bytes` in all, `bytes` / p from each of the p ranks. For every set U of vertices
/// that misses a rank, the shards of U's ranks must leave it: T >= |ranks in U| * s / Bout(U). The
/// greatest over all U is found by maximum flow from all ranks to one, Newton's method on T, and is
/// attainable (Edmonds' branchings). On a symmetric cluster that is the greater of
/// (n-1)/n * S/B2 and (p-1)/p * S/B1.
///
/// The sink need not be every rank: ranks that look alike (equal under colour refinement of the
/// graph) give equal cuts. Should there be more than 16 kinds of rank, the 16 with the least
/// bandwidth into themselves and their nodes are taken, which is a bound all the same.
/// Both directions of a shared link count in full, and every vertex may pass data on: the bound
/// may be lower than what the machine can do, never higher.
///
/// Cost: a few flows of O(links) each: 16,384 ranks in about a second. `bytes` >= 0.
Bound AllGatherBound(const Topology& topology, double bytes);
/// Reduce-scatter of `bytes` on each rank: the transpose, hence that bound with links turned round.
Bound ReduceScatterBound(const Topology& topology, double bytes);
/// Gather of shards[r] bytes from each rank r to `root`, or of one size from each: as for the
/// all-gather, where the sets miss the root, the only sink. Attainable (maximum flow, minimum cut).
Bound GatherBound(const Topology& topology, std::span<const double> shards, int root);
/// Scatter of shards[r] bytes from `root` to each rank r, or of one size to each: the transpose.
Bound ScatterBound(const Topology& topology, std::span<const double> shards, int root);
/// Broadcast of `bytes` from `root`: bytes / the least maximum flow from it to a rank. (Edmonds)
/// Of the ranks those are looked at that the all-gather has for its sinks.
Bound BroadcastBound(const Topology& topology, double bytes, int root);
/// Reduce of `bytes` on each rank to `root`: the transpose of broadcast, since of every element one
/// message at least leaves each set of ranks that misses the root.
Bound ReduceBound(const Topology& topology, double bytes, int root);
/// All-reduce of `bytes` on each rank. The greatest of: the bytes over the least bandwidth into or
/// out of a rank or node; and, for ranks divided by node, and into single ranks, 2(k-1) * bytes
/// over the sum of the bandwidth into the k parts (Patarasuk and Yuan 2009: k - 1 messages to
/// combine an element, as many to spread it).
Bound AllReduceBound(const Topology& topology, double bytes);
/// All-to-all of `bytes` on each rank, bytes / p to each: what crosses the cut around each
/// rank, node and group of nodes below one switch, over its bandwidth.
Bound AllToAllBound(const Topology& topology, double bytes);

/// ceil(log2 p) times the least latency from a rank to another: no rank knows of more than 2^k
/// ranks after k messages. For all collectives in which every rank depends on every other.
double LatencyBound(const Topology& topology);

}  // namespace tidegate
