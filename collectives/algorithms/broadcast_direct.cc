// Direct broadcast: the root stages its tensor once and every other rank copies it out.
//
// Cost: alpha + S * beta (stage, root) + S * beta (copy out, others), pipelined over chunks, one
// round; the root's memory is read p-1 times, from the cache while chunks fit in it. Extra memory:
// 2 chunks at the root. Flat rather than a tree: inside a node one copy serves all readers.

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule BroadcastDirect(const AlgorithmInput& input) {
  ScheduleBuilder builder("direct", Collective::kBroadcast, input.rank, input.ranks);
  if (input.rank == input.root) {
    builder.Wait(kAllPeers, Channel::kConsumed, Input(0), kPreviousInSlot);
    builder.Copy(Stage(input.root, 0), Input(0));
    builder.Signal(Channel::kReady, Input(0));
  } else {
    builder.Wait(input.root, Channel::kReady, Output(0));
    builder.Get(Output(0), Stage(input.root, 0));
    builder.Signal(Channel::kConsumed, kLongestBlock, -kPreviousInSlot);
  }
  return builder.Build();
}

}  // namespace tidegate
