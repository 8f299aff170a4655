// Direct gather: every rank but the root offers its tensor, those of the root's node in their own
// stages, the others in the root's, and the root copies them out.
//
// Cost: alpha + S/p beta1 (stage) + (p-1)/p S beta1 at the root, one round, pipelined over chunks;
// between nodes alpha2 + (p-g)/p S beta2 of the root's own link, each shard once: a tree has no
// fewer bytes there, and more rounds. Extra memory: 2 chunks a rank, between nodes 2 (p-g).
// Source: the linear gather that MPI libraries have; its bytes are the lower bound of Chan,
// Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and
// experience", Concurrency and Computation: Practice and Experience 19(13), 2007.

#include <algorithm>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/outsiders.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule GatherDirect(const Placement& placement, const AlgorithmInput& input) {
  const int me = input.rank;
  const int root = input.root;
  const Outsiders outsiders(placement, root);
  ScheduleBuilder builder("direct", Collective::kGather, me, input.ranks);
  builder.Root(root).SubSlots(std::max(1, outsiders.count()));
  if (me != root) {
    const bool is_far = outsiders.Has(me);
    builder.Staging(!is_far);
    builder.Wait(root, kConsumed, Input(0), kPreviousInSlot);
    if (is_far) {
      builder.Put(Stage(root, outsiders.NumberOf(me)), Input(0));
    } else {
      builder.Copy(Stage(me, 0), Input(0));
    }
    builder.Signal(kReady, Input(0));
    return builder.Build();
  }
  builder.Copy(Output(me), Input(0));
  for (int peer = 0; peer < input.ranks; ++peer) {
    if (peer == me) continue;
    builder.Wait(peer, kReady, Output(peer));
    if (outsiders.Has(peer)) {
      builder.Copy(Output(peer), Stage(me, outsiders.NumberOf(peer)));
    } else {
      builder.Get(Output(peer), StagedInput(peer, 0, 0));
    }
  }
  builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
  return builder.Build();
}

std::vector<WireClaim> ClaimOfGatherDirect(const Placement& placement,
                                           const AlgorithmInput& input) {
  if (placement.node_of(input.rank) == placement.node_of(input.root)) return {};
  return {{input.root, input.rank}};
}

}  // namespace tidegate
