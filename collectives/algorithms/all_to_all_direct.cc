// Direct all-to-all, even or not: each rank stages one block for each other rank and copies out
// what the others staged for it. Each pair's stream has its own length, known to both ends.
//
// Cost: alpha + 2 (p-1)/p * S * beta a rank, one round, pipelined over chunks. Extra memory: 2
// (p-1) chunks a rank. Source: the exchange in which all messages are posted at once of Thakur,
// Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
// 19(1), 2005, section 4.3, through shared memory.

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/sub_slots.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule AllToAllDirect(const AlgorithmInput& input) {
  const int me = input.rank;
  ScheduleBuilder builder("direct", Collective::kAllToAll, me, input.ranks);
  builder.SubSlots(SubSlotsForPeers(input.ranks)).Lag(0);
  StageForPeers(builder, input, kConsumed);
  builder.Lag(1);
  builder.Copy(Output(me), Input(me));
  for (int i = 1; i < input.ranks; ++i) {
    const int peer = (me + i) % input.ranks;
    builder.Wait(peer, kReady, Output(peer));
    builder.Get(Output(peer), StagedFor(me, peer));
  }
  builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
  return builder.Build();
}

}  // namespace tidegate
