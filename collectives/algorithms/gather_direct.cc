// Direct gather: every rank but the root stages its tensor, the root copies them out.
//
// Cost: alpha + S/p * beta (stage) + (p-1)/p * S * beta at the root, one round, pipelined over
// chunks. Extra memory: 2 chunks a rank.

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule GatherDirect(const AlgorithmInput& input) {
  const int me = input.rank;
  ScheduleBuilder builder("direct", Collective::kGather, me, input.ranks);
  builder.Root(input.root);
  if (me != input.root) {
    builder.Wait(input.root, kConsumed, Input(0), kPreviousInSlot);
    builder.Copy(Stage(me, 0), Input(0));
    builder.Signal(kReady, Input(0));
    return builder.Build();
  }
  builder.Copy(Output(me), Input(0));
  for (int peer = 0; peer < input.ranks; ++peer) {
    if (peer == me) continue;
    builder.Wait(peer, kReady, Output(peer));
    builder.Get(Output(peer), Stage(peer, 0));
  }
  builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
  return builder.Build();
}

}  // namespace tidegate
