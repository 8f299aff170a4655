// One-shot all-reduce for small messages: every rank stages its tensor for its node, puts it to all
// ranks beyond, and reduces all of them.
//
// Cost: alpha + S * beta (stage) + p * S * gamma (reduce) a rank, one round; between nodes alpha2 +
// (p-g) S beta2, g^2 times what whole sums of columns take, but without their hand-overs inside a
// node. Extra memory: 2 chunks a rank, between nodes 2 p. Order of reduction: rank 0 to p-1 in one
// pass, the same as direct's and two-shot's, so these give equal bits.
// Source: the all-to-all broadcast form of reference MPI_Allreduce for short messages (Thakur,
// Rabenseifner, Gropp 2005, section 4.5), over shared memory.

#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule AllReduceOneShot(const Placement& placement, const AlgorithmInput& input) {
  const int me = input.rank;
  const int ranks = input.ranks;
  const int node = placement.node_of(me);
  const bool has_wire = placement.nodes() > 1;
  const auto is_near = [&](int rank) { return placement.node_of(rank) == node; };
  // Sub-slots behind the first are for the others, by their distance.
  const auto slot_for = [&](int owner, int from) { return (from - owner + ranks) % ranks; };

  ScheduleBuilder builder("one_shot", Collective::kAllReduce, me, ranks);
  builder.SubSlots(has_wire ? ranks : 1);
  if (ranks > 1) {
    builder.Wait(kAllPeers, kConsumed, Input(0), kPreviousInSlot);
    if (placement.ranks_on(node).size() > 1) builder.Copy(Stage(me, 0), Input(0));
    for (int distance = 1; distance < ranks; ++distance) {
      // Its right neighbour first, so that not all send to one rank at once.
      const int peer = (me + distance) % ranks;
      if (!is_near(peer)) builder.Put(Stage(peer, slot_for(peer, me)), Input(0));
    }
    builder.Signal(kReady, Input(0));
  }
  builder.Lag(1);
  builder.Wait(kAllPeers, kReady, Output(0));
  std::vector<Operand> operands;
  operands.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const Slice staged = is_near(rank) ? Stage(rank, 0) : Stage(me, slot_for(me, rank));
    operands.push_back({rank == me ? Input(0) : staged, rank});
  }
  builder.Reduce(Output(0), operands, Output(0));
  builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
  return builder.Build();
}

std::vector<WireClaim> ClaimOfAllReduceOneShot(const Placement& placement,
                                               const AlgorithmInput& input) {
  std::vector<WireClaim> claims;
  for (int rank = 0; rank < input.ranks; ++rank)
    if (placement.node_of(rank) != placement.node_of(input.rank)) claims.push_back({rank, 0});
  return claims;
}

}  // namespace tidegate
