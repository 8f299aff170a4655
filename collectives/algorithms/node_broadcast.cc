// Broadcasts between nodes, each of S bytes from node 0; flow_column_broadcast.cc runs one for each
// column, backwards as a reduction.
//
// Cost among n nodes:
//                     rounds             time
//   chain             n-1                (n-1) alpha + S beta, pipelined over chunks
//   scatter_pairwise  2                  2 alpha + 2 (n-1)/n S beta at the root, half elsewhere
//   scatter_bruck     1 + ceil(log2 n)   an alpha each, and the same bytes
// Extra memory, of two chunks: one piece for the chain, n for the others; backwards also what a
// node sends, one piece or at most 2 (n-1). Order of reduction, backwards: that of the flow; each
// node that passes a sum on rounds it: n-2 in a chain, at most one in pairs, ceil(log2 n) by Bruck.
//
// Sources: the pipelined chain, as in Sanders, Speck, Traff, "Two-tree algorithms for full
// bandwidth broadcast, reduction and scan", Parallel Computing 35(12), 2009; van de Geijn's scatter
// and all-gather, as in Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, section 4.2, and backwards
// Rabenseifner's reduce-scatter and gather, section 4.4.

#include "collectives/algorithms/node_broadcast.h"

#include "collectives/algorithms/exchange.h"

namespace tidegate {
namespace {

/// Node 0 gives node k piece k; then all exchange theirs, but for node 0, which has all and only
/// sends.
NodeBroadcast ScatterThen(int me, int nodes, ExchangeMaker make) {
  const Exchange exchange = make(me, nodes);
  NodeBroadcast plan{.name = "scatter_" + exchange.name, .pieces = nodes};
  plan.sent_pieces = 2 * (nodes - 1);
  plan.times = nodes > 1 ? 1 + exchange.times : 0;
  plan.steps = 1 + static_cast<int>(exchange.steps.size());
  plan.back_period = (exchange.longest_stay + 3) / 2 + 1;
  const auto scattered = [](int peer, int piece) {
    return NodeHop{.peer = peer, .pieces = {piece}, .back_offset = piece - 1};
  };
  if (me != 0) plan.receives.push_back(scattered(0, me));
  for (int node = 1; me == 0 && node < nodes; ++node) plan.sends.push_back(scattered(node, node));
  for (std::size_t i = 0; i < exchange.steps.size(); ++i) {
    const ExchangeStep& step = exchange.steps[i];
    const auto hop = [&](int peer, const std::vector<int>& pieces) {
      return NodeHop{.step = 1 + static_cast<int>(i),
                     .time = 1 + step.time,
                     .peer = peer,
                     .pieces = pieces,
                     .offset = 1 + step.offset,
                     .back_offset = nodes - 1 + step.offset,
                     .is_last = step.is_last_hop};
    };
    if (step.to != 0) plan.sends.push_back(hop(step.to, step.sent));
    if (me != 0) plan.receives.push_back(hop(step.from, step.received));
  }
  return plan;
}

}  // namespace

NodeBroadcast ChainBroadcast(int me, int nodes) {
  NodeBroadcast plan{.name = "chain", .times = nodes - 1, .steps = 1, .back_period = 2};
  const auto link = [&](int sender, int peer) {
    return NodeHop{.time = sender, .peer = peer, .pieces = {0}, .is_last = sender + 2 == nodes};
  };
  if (me > 0) plan.receives.push_back(link(me - 1, me - 1));
  if (me + 1 < nodes) plan.sends.push_back(link(me, me + 1));
  return plan;
}

NodeBroadcast ScatterPairwiseBroadcast(int me, int nodes) {
  return ScatterThen(me, nodes, PairwiseExchange);
}
NodeBroadcast ScatterBruckBroadcast(int me, int nodes) {
  return ScatterThen(me, nodes, BruckExchange);
}

}  // namespace tidegate
