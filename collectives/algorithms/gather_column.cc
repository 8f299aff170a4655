// Gather by columns: the ranks of other nodes put their tensors into the stages of the root's whole
// node, each rank of which takes a share of them with its own NIC, and the root copies all out.
//
// Cost: alpha2 + alpha1 + (p-g)/p S beta2 of the root's node, all NICs of it together, each shard
// once: the lower bound for every placement; (p-1)/p S beta1 at the root, pipelined over chunks.
// Two rounds. Extra memory: 2 (1 + (p-g)/g) chunks a rank. Source: the two-level gather of
// hierarchical collectives, for example Open MPI's HAN (Luo et al., CLUSTER 2020), with an upper
// level that all ranks of the root's node share.
//
// Only for blocks of one size: a rank that others' tensors pass says that they have come in as many
// chunks as its own has.

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/outsiders.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule GatherColumn(const Placement& placement, const AlgorithmInput& input) {
  const int me = input.rank;
  const int root = input.root;
  const Outsiders outsiders(placement, root);
  // Sub-slot 0 is for a rank's own tensor, the others for those that pass it.
  const auto stage_of = [&](int outsider) {
    return Stage(outsiders.RelayOf(outsider), 1 + outsiders.TurnOf(outsider));
  };
  ScheduleBuilder builder("column", Collective::kGather, me, input.ranks);
  builder.Root(root).Even().SubSlots(1 + outsiders.most_of_one_relay());
  if (outsiders.Has(me)) {
    builder.Wait(root, kConsumed, Input(0), kPreviousInSlot);
    builder.Put(stage_of(me), Input(0));
    builder.Signal(kReady, Input(0), 0, outsiders.RelayOf(me));
    return builder.Build();
  }
  const std::vector<int> passing = outsiders.Passing(placement.local_of(me));
  if (me != root) {
    builder.Wait(root, kConsumed, Input(0), kPreviousInSlot);
    builder.Copy(Stage(me, 0), Input(0));
    builder.Lag(1);
    for (const int outsider : passing) builder.Wait(outsider, kReady, Input(0));
    builder.Signal(kReady, Input(0));
    return builder.Build();
  }
  builder.Copy(Output(me), Input(0));
  builder.Lag(1);
  for (const int outsider : passing) {
    builder.Wait(outsider, kReady, Output(outsider));
    builder.Copy(Output(outsider), stage_of(outsider));
  }
  builder.Lag(2);
  for (const int peer : placement.ranks_on(placement.node_of(root))) {
    if (peer == me) continue;
    builder.Wait(peer, kReady, Output(peer));
    builder.Get(Output(peer), Stage(peer, 0));
    for (const int outsider : outsiders.Passing(placement.local_of(peer)))
      builder.Get(Output(outsider), stage_of(outsider));
  }
  builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
  return builder.Build();
}

std::vector<WireClaim> ClaimOfGatherColumn(const Placement& placement,
                                           const AlgorithmInput& input) {
  const Outsiders outsiders(placement, input.root);
  if (!outsiders.Has(input.rank)) return {};
  return {{outsiders.RelayOf(input.rank), input.rank}};
}

}  // namespace tidegate
