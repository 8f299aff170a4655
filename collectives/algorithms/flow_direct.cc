// Direct: each rank stages its shard once for its node, which copies it out, and sends it to every
// rank beyond.
//
// Cost a rank: alpha + S/p beta1 (stage) + (q-1)/p S beta1 (copy out of q ranks of the node)
// + (p-q)/p S beta2 (wire), one round, pipelined over chunks. On one node each shard is written to
// memory once and read p-1 times, from the cache while chunks fit in it; between nodes every byte
// crosses the wire g times more often than it must. Extra memory: 2 chunks, 2 p between nodes.
// Order of reduction, backwards: ranks 0 to p-1, in one pass.
// Source: the "direct" exchange of Thakur, Rabenseifner, Gropp, "Optimization of collective
// communication operations in MPICH", IJHPCA 19(1), 2005, section 4, with one shared copy.

#include "collectives/algorithms/flows.h"

namespace tidegate {
namespace {

/// Where `owner` keeps something for `other` among one place for every rank but itself: by their
/// distance, so that all ranks do the same, moved by their numbers.
int PlaceFor(int owner, int other, int ranks) { return (other - owner + ranks) % ranks - 1; }

}  // namespace

Flow DirectFlow(const Placement& placement, int rank) {
  const int ranks = placement.ranks();
  const bool has_wire = placement.nodes() > 1;
  Flow flow{.name = "direct", .rank = rank, .ranks = ranks, .own = {rank}};
  flow.times = ranks > 1 ? 1 : 0;
  flow.ids = has_wire ? ranks : 1;
  flow.slots = has_wire ? ranks : 1;
  flow.back_slots = ranks == 1 ? 1 : (has_wire ? 2 : 1) * (ranks - 1);
  const auto is_near = [&](int peer) { return placement.node_of(peer) == placement.node_of(rank); };
  const auto hop = [&](int peer, int from, int to, int distance) {
    Hop made{.peer = peer, .leaf = true, .blocks = {{from}}};
    if (is_near(peer)) {
      made.back_slot = PlaceFor(to, from, ranks);
    } else {
      made.medium = Hop::Medium::kWire;
      made.id = distance;
      made.slot = 1 + PlaceFor(to, from, ranks);
      made.back_slot = ranks - 1 + PlaceFor(from, to, ranks);
    }
    return made;
  };
  for (int distance = 1; distance < ranks; ++distance) {
    // Each rank starts with its right neighbour, so that not all read the same shard at once.
    const int right = (rank + distance) % ranks;
    const int left = (rank - distance + ranks) % ranks;
    flow.sends.push_back(hop(right, rank, right, distance));
    // What comes over the wire arrives in the order in which it is sent.
    const int peer = is_near(right) ? right : -1;
    if (peer >= 0) flow.receives.push_back(hop(peer, peer, rank, 0));
    if (!is_near(left)) flow.receives.push_back(hop(left, left, rank, distance));
  }
  return flow;
}

}  // namespace tidegate
