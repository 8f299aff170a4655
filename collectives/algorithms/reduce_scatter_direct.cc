// Direct reduce-scatter over memory that all ranks can read: each rank stages the blocks of the
// others, and each rank reduces its own block from all stages and its own input in one pass. The
// transpose of the direct all-gather.
//
// Cost: alpha + (p-1)/p * S * beta (stage) + S * gamma (one pass over p inputs of S/p) a rank, one
// round, pipelined over chunks. Extra memory: 2 (p-1) chunks a rank. Order of reduction: rank 0 to
// p-1 for every element, whatever the chunk size.
// Source: as all_gather_direct; "pairwise" reduce-scatter without its p-1 partial sums.

#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/sub_slots.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule ReduceScatterDirect(const AlgorithmInput& input) {
  const int me = input.rank;
  ScheduleBuilder builder("direct", Collective::kReduceScatter, me, input.ranks);
  builder.SubSlots(SubSlotsForPeers(input.ranks)).Lag(0);
  StageForPeers(builder, input, Channel::kConsumed);
  builder.Lag(1);
  std::vector<Slice> operands;
  for (int rank = 0; rank < input.ranks; ++rank) {
    if (rank != me) builder.Wait(rank, Channel::kReady, Output(0));
    operands.push_back(rank == me ? Input(me) : Stage(rank, SubSlotFor(rank, me)));
  }
  builder.Reduce(Output(0), operands, Output(0));
  builder.Signal(Channel::kConsumed, kLongestBlock, -kPreviousInSlot);
  return builder.Build();
}

}  // namespace tidegate
