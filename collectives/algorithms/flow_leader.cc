// Leader based: the first rank of each node exchanges what its whole node holds with those of the
// other nodes, and offers what arrives to its node.
//
// Cost: the exchange between n nodes of g S/p each (exchange.cc), its rounds and alpha2, and
// (n-1)/n S beta2, as column first, in fewer and larger messages, but by one rank alone; inside, a
// round before it and one after it, 2 alpha1 + (p-1)/p S beta1. Extra memory: p chunks.
// Order of reduction, backwards: the leader reduces its node's ranks with what came over the wire
// in the order of ranks; the owner of a block adds its node's ranks and the leader's sum. Source:
// the leader-based form of hierarchical collectives, for example Open MPI's HAN (Luo et al.,
// CLUSTER 2020).

#include <algorithm>

#include "collectives/algorithms/flows.h"

namespace tidegate {
namespace {

std::vector<int> RanksOf(const Placement& placement, const std::vector<int>& nodes) {
  std::vector<int> ranks;
  for (const int node : nodes)
    for (const int rank : placement.ranks_on(node)) ranks.push_back(rank);
  return ranks;
}

}  // namespace

Flow LeaderFlow(const Placement& placement, int rank, ExchangeMaker make) {
  const int node = placement.node_of(rank);
  const std::span<const int> local = placement.ranks_on(node);
  const int size = static_cast<int>(local.size());
  const int place = placement.local_of(rank);
  const int largest = placement.ranks_on_largest_node();
  const bool is_leader = place == 0;
  const Exchange exchange = make(node, placement.nodes());
  const int steps = static_cast<int>(exchange.steps.size());
  // Nodes may differ in size, so each step has room for as many of the largest.
  const int arrivals = (placement.nodes() - 1) * largest;

  Flow flow{.name = "leader_" + exchange.name, .rank = rank, .ranks = placement.ranks()};
  flow.own = {rank};
  const int gathers = largest > 1 ? 1 : 0;
  flow.times = exchange.times + 2 * gathers;
  flow.ids = 2 * steps + 1;
  flow.slots = 1 + arrivals;
  flow.back_slots = std::max(1, largest - 1 + 2 * arrivals);
  flow.back_period = (exchange.longest_stay + 3) / 2;

  for (int i = 1; i < size; ++i) {
    const auto at = [&](int shift) { return static_cast<std::size_t>((place + shift) % size); };
    const auto hop = [&](int peer, int owner, int reader) {
      const int from = placement.local_of(owner);
      const int to = placement.local_of(reader);
      return Hop{.peer = peer,
                 .back_slot = from < to ? from : from - 1,
                 .leaf = to != 0 || placement.nodes() == 1,
                 .blocks = {{owner}}};
    };
    flow.sends.push_back(hop(local[at(i)], rank, local[at(i)]));
    flow.receives.push_back(hop(local[at(i)], local[at(i)], rank));
  }
  for (int i = 0; i < steps; ++i) {
    const ExchangeStep& step = exchange.steps[static_cast<std::size_t>(i)];
    const int time = step.time + gathers;
    const int offset = step.offset * largest;
    const auto wire = [&](int peer_node, const std::vector<int>& nodes, int receiver) {
      return Hop{.time = time,
                 .peer = placement.ranks_on(peer_node)[0],
                 .medium = Hop::Medium::kWire,
                 .id = 1 + i,
                 .slot = 1 + offset,
                 .back_slot = largest - 1 + arrivals + offset,
                 .leaf = step.is_last_hop && placement.ranks_on(receiver).size() == 1,
                 .blocks = RunsOf(RanksOf(placement, nodes))};
    };
    if (is_leader) {
      flow.sends.push_back(wire(step.to, step.sent, step.to));
      flow.receives.push_back(wire(step.from, step.received, node));
    }
    const auto spread = [&](int peer) {
      return Hop{.time = time + 1,
                 .peer = peer,
                 .id = 1 + steps + i,
                 .slot = 1 + offset,
                 .back_slot = largest - 1 + offset,
                 .leaf = true,
                 .blocks = RunsOf(RanksOf(placement, step.received))};
    };
    if (!is_leader) flow.receives.push_back(spread(local[0]));
    for (int reader = 1; is_leader && reader < size; ++reader)
      flow.sends.push_back(spread(local[static_cast<std::size_t>(reader)]));
  }
  return flow;
}

}  // namespace tidegate
