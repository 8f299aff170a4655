// Direct scatter: the root stages one block for each other rank, which copies it out.
//
// Cost: alpha + (p-1)/p * S * beta (stage, root) + S/p * beta (copy out), one round, pipelined over
// chunks. Extra memory: 2 (p-1) chunks at the root.

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/sub_slots.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule ScatterDirect(const AlgorithmInput& input) {
  const int me = input.rank;
  const int root = input.root;
  ScheduleBuilder builder("direct", Collective::kScatter, me, input.ranks);
  builder.Root(root).SubSlots(SubSlotsForPeers(input.ranks));
  if (me != root) {
    builder.Wait(root, kReady, Output(0));
    builder.Get(Output(0), Stage(root, SubSlotFor(root, me)));
    builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
    return builder.Build();
  }
  StageForPeers(builder, input, kConsumed);
  builder.Copy(Output(0), Input(me));
  return builder.Build();
}

}  // namespace tidegate
