#pragma once

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/exchange.h"
#include "collectives/algorithms/flows.h"
#include "collectives/algorithms/lower.h"

namespace tidegate {

/// A ring in both directions: to each neighbour what came last from the other one. Half the rounds
/// of a ring, floor(m/2) (alpha + s beta) each way, where links carry both directions at once.
inline Exchange BothWaysExchange(int me, int members) {
  Exchange exchange{.name = "both_ways", .members = members};
  const int right_hops = members / 2;
  const int left_hops = (members - 1) / 2;
  int blocks = 0;
  const auto pass_on = [&](int hop, int direction, int hops) {
    if (hop >= hops) return;
    const auto member = [&](int distance) { return (me + distance + members) % members; };
    exchange.steps.push_back({.time = hop,
                              .to = member(direction),
                              .from = member(-direction),
                              .sent = {member(-direction * hop)},
                              .received = {member(-direction * (hop + 1))},
                              .offset = blocks++,
                              .is_last_hop = hop + 1 == hops});
  };
  for (int hop = 0; hop < right_hops; ++hop) {
    pass_on(hop, +1, right_hops);
    pass_on(hop, -1, left_hops);
  }
  exchange.times = right_hops;
  return exchange;
}

/// The all-gather of it over all ranks; Collect instead of Spread would be the reduce-scatter.
inline Schedule AllGatherBothWays(const AlgorithmInput& input) {
  const Placement placement =
      input.placement != nullptr ? *input.placement : Placement::OneNode(input.ranks);
  return Spread(FlatFlow(placement, input.rank, BothWaysExchange), Collective::kAllGather);
}

}  // namespace tidegate
