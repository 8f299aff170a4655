// Flat: one exchange over all ranks in the order of their numbers.
//
// Cost: rounds and time of the exchange among p members (exchange.cc) with the slowest path that it
// uses, for a ring p-1 rounds and (p-1) (alpha2 + S/p beta2) at most; it moves (p-1)/p S through
// each node's link where the ranks of a node are neighbours, and g times that where they are not.
// Extra memory: 2 (p-1) chunks. Order of reduction, backwards: each hop adds its own contribution
// and those it received, in the order of the ranks they come from, and rounds. Source: those of the
// exchanges, for example the ring of Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005.

#include <algorithm>

#include "collectives/algorithms/flows.h"

namespace tidegate {

Flow FlatFlow(const Placement& placement, int rank, ExchangeMaker make) {
  const int ranks = placement.ranks();
  const Exchange exchange = make(rank, ranks);
  Flow flow{.name = exchange.name, .rank = rank, .ranks = ranks, .own = {rank}};
  flow.times = exchange.times;
  flow.ids = static_cast<int>(exchange.steps.size());
  // A stage holds what its rank offers to its node beside what others put there.
  const bool has_wire = placement.nodes() > 1;
  const int offers = has_wire ? ranks - 1 : 0;
  flow.slots = flow.back_slots = std::max(1, offers + ranks - 1);
  flow.back_period = (exchange.longest_stay + 2) / 2;
  for (std::size_t i = 0; i < exchange.steps.size(); ++i) {
    const ExchangeStep& step = exchange.steps[i];
    const auto hop = [&](int peer, const std::vector<int>& blocks) {
      const bool is_wire = placement.node_of(peer) != placement.node_of(rank);
      Hop made{.time = step.time, .peer = peer, .id = static_cast<int>(i)};
      made.medium = is_wire ? Hop::Medium::kWire : Hop::Medium::kNode;
      made.slot = step.offset + (is_wire ? 0 : offers);
      made.back_slot = made.slot;
      made.leaf = step.is_last_hop;
      made.blocks = RunsOf(blocks);
      return made;
    };
    flow.sends.push_back(hop(step.to, step.sent));
    flow.receives.push_back(hop(step.from, step.received));
  }
  return flow;
}

}  // namespace tidegate
