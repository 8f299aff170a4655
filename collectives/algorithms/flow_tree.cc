// Tree: a binomial tree over the nodes, and inside each the stage of the rank that it came to.
//
// Cost: ceil(log2 n) (alpha + S beta2) + S beta1, pipelined over chunks: each node sends to at most
// ceil(log2 n) others. Extra memory: 2 chunks, backwards 2 (g + log2 n). Order of reduction,
// backwards: at each node its ranks and what came from the nodes below, in the order of ranks.
// Source: the binomial broadcast of Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, section 4.2,
// over nodes.

#include <algorithm>

#include "collectives/algorithms/flows.h"

namespace tidegate {
namespace {

/// The rank that speaks for `node`: the root for its own, the first for the others.
int SpeakerOf(const Placement& placement, int node, int root) {
  return node == placement.node_of(root) ? root : placement.ranks_on(node)[0];
}

}  // namespace

Flow TreeFlow(const Placement& placement, int rank, int root) {
  const int nodes = placement.nodes();
  const int node = placement.node_of(rank);
  const int speaker = SpeakerOf(placement, node, root);
  const int root_node = placement.node_of(root);
  int rounds = 0;
  while ((1 << rounds) < nodes) ++rounds;

  Flow flow{.name = nodes == 1 ? "direct" : "tree", .rank = rank, .ranks = placement.ranks()};
  flow.root = root;
  if (rank == root) flow.own = {0};
  flow.times = rounds + 1;
  flow.ids = rounds + 1;
  flow.slots = 2;
  flow.back_slots = std::max(1, rounds + 1);
  flow.back_period = (rounds + 3) / 2;

  // In round t the nodes that have the block, the first 2^t counted from the root's, each give it
  // to the node 2^t further on.
  const int place = (node - root_node + nodes) % nodes;
  int arrived = 0;  // Time from which this node has the block.
  const auto wire = [&](int round, int peer_place) {
    return Hop{.time = round,
               .peer = SpeakerOf(placement, (root_node + peer_place) % nodes, root),
               .medium = Hop::Medium::kWire,
               .id = round,
               .back_slot = round,
               .blocks = {{0}}};
  };
  for (int round = 0; round < rounds; ++round) {
    const int reach = 1 << round;
    if (place < reach && place + reach < nodes && rank == speaker)
      flow.sends.push_back(wire(round, place + reach));
    if (place >= reach && place < 2 * reach) {
      arrived = round + 1;
      if (rank == speaker) flow.receives.push_back(wire(round, place - reach));
    }
  }
  for (const int reader : placement.ranks_on(node)) {
    if (reader == speaker || (rank != speaker && rank != reader)) continue;
    const Hop hop{.time = arrived,
                  .peer = rank == speaker ? reader : speaker,
                  .id = rounds,
                  .slot = speaker == root ? 1 : 0,
                  .back_slot = rounds,
                  .leaf = true,
                  .blocks = {{0}}};
    (rank == speaker ? flow.sends : flow.receives).push_back(hop);
  }
  return flow;
}

}  // namespace tidegate
