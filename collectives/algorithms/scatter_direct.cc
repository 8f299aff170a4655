// Direct scatter: the root stages one block for each other rank of its node and puts one into the
// stage of each rank of the others; they copy them out.
//
// Cost: alpha + (p-1)/p S beta1 (stage, root) + S/p beta1 (copy out), one round, pipelined over
// chunks; between nodes alpha2 + (p-g)/p S beta2 of the root's own link, each shard once: a tree
// has no fewer bytes there, and more rounds. Extra memory: 2 (g-1) chunks at the root, 2 elsewhere.
// Source: the linear scatter that MPI libraries have; its bytes are the lower bound of Chan,
// Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and
// experience", Concurrency and Computation: Practice and Experience 19(13), 2007.

#include <algorithm>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/sub_slots.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule ScatterDirect(const Placement& placement, const AlgorithmInput& input) {
  const int me = input.rank;
  const int root = input.root;
  const int node = placement.node_of(root);
  const auto place_of = [&](int peer) {
    return SubSlotFor(placement.local_of(root), placement.local_of(peer));
  };
  ScheduleBuilder builder("direct", Collective::kScatter, me, input.ranks);
  builder.Root(root).SubSlots(SubSlotsForPeers(static_cast<int>(placement.ranks_on(node).size())));
  if (me != root) {
    builder.Wait(root, kReady, Output(0));
    if (placement.node_of(me) == node) {
      builder.Get(Output(0), StagedInput(root, place_of(me), me));
    } else {
      builder.Copy(Output(0), Stage(me, 0));
    }
    builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
    return builder.Build();
  }
  for (int i = 1; i < input.ranks; ++i) {
    const int peer = (root + i) % input.ranks;
    builder.Staging(placement.node_of(peer) == node);
    builder.Wait(peer, kConsumed, Input(peer), kPreviousInSlot);
    if (placement.node_of(peer) == node) {
      builder.Copy(Stage(me, place_of(peer)), Input(peer));
    } else {
      builder.Put(Stage(peer, 0), Input(peer));
    }
  }
  // One signal tells of what is staged and of what was put.
  builder.Staging(placement.nodes() == 1).Signal(kReady, kLongestBlock);
  builder.Staging(false).Copy(Output(0), Input(me));
  return builder.Build();
}

std::vector<WireClaim> ClaimOfScatterDirect(const Placement& placement,
                                            const AlgorithmInput& input) {
  std::vector<WireClaim> claims;
  for (int rank = 0; input.rank == input.root && rank < input.ranks; ++rank)
    if (placement.node_of(rank) != placement.node_of(input.root)) claims.push_back({rank, rank});
  return claims;
}

}  // namespace tidegate
