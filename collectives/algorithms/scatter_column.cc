// Scatter by columns, the transpose of gather_column.cc: the root puts the blocks of other nodes'
// ranks into the stages of its whole node, each rank of which passes its share of them on with its
// own NIC.
//
// Cost: alpha1 + alpha2 + (p-g)/p S beta2 of the root's node, all NICs of it together, each shard
// once: the lower bound for every placement; (p-1)/p S beta1 at the root, pipelined over chunks.
// Two rounds. Extra memory: 2 (1 + (p-g)/g) chunks a rank. Source: the two-level scatter of
// hierarchical collectives, for example Open MPI's HAN (Luo et al., CLUSTER 2020), with an upper
// level that all ranks of the root's node share.
//
// Only for blocks of one size: a rank passes on as many chunks as its own block has.

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/outsiders.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule ScatterColumn(const Placement& placement, const AlgorithmInput& input) {
  const int me = input.rank;
  const int root = input.root;
  const Outsiders outsiders(placement, root);
  // Sub-slot 0 is for a rank's own block, the others for those that it passes on.
  const auto stage_of = [&](int outsider) {
    return Stage(outsiders.RelayOf(outsider), 1 + outsiders.TurnOf(outsider));
  };
  ScheduleBuilder builder("column", Collective::kScatter, me, input.ranks);
  builder.Root(root).Even().SubSlots(1 + outsiders.most_of_one_relay());
  if (outsiders.Has(me)) {
    builder.Lag(2);
    builder.Wait(outsiders.RelayOf(me), kReady, Output(0));
    builder.Copy(Output(0), Stage(me, 0));
    builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
    return builder.Build();
  }
  const std::vector<int> passing = outsiders.Passing(placement.local_of(me));
  if (me != root) {
    builder.Lag(1);
    builder.Wait(root, kReady, Output(0));
    for (const int outsider : passing) {
      builder.Wait(outsider, kConsumed, Output(0), kPreviousInSlot);
      builder.MoveWhile(StepKind::kPut, Stage(outsider, 0), stage_of(outsider), Output(0));
    }
    builder.Signal(kReady, Output(0));
    builder.Copy(Output(0), Stage(me, 0));
    builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
    return builder.Build();
  }
  for (const int peer : placement.ranks_on(placement.node_of(root))) {
    if (peer == me) continue;
    builder.Wait(peer, kConsumed, Input(peer), kPreviousInSlot);
    for (const int outsider : outsiders.Passing(placement.local_of(peer)))
      builder.Put(stage_of(outsider), Input(outsider));
    builder.Put(Stage(peer, 0), Input(peer));
  }
  for (const int outsider : passing) {
    builder.Wait(outsider, kConsumed, Input(outsider), kPreviousInSlot);
    builder.Put(Stage(outsider, 0), Input(outsider));
  }
  builder.Signal(kReady, kLongestBlock);
  builder.Copy(Output(0), Input(me));
  return builder.Build();
}

std::vector<WireClaim> ClaimOfScatterColumn(const Placement& placement,
                                            const AlgorithmInput& input) {
  const Outsiders outsiders(placement, input.root);
  if (outsiders.Has(input.rank)) return {};
  std::vector<WireClaim> claims;
  for (const int outsider : outsiders.Passing(placement.local_of(input.rank)))
    claims.push_back({outsider, outsider});
  return claims;
}

}  // namespace tidegate
