// One-shot all-reduce for small messages: every rank stages its tensor and reduces all of them.
//
// Cost: alpha + S * beta (stage) + p * S * gamma (reduce) a rank, one round. Extra memory: 2 chunks
// a rank. Order of reduction: rank 0 to p-1, the same as two-shot's, so the two give equal bits.
// Source: the all-to-all broadcast form of reference MPI_Allreduce for short messages (Thakur,
// Rabenseifner, Gropp 2005, section 4.5), over shared memory.

#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule AllReduceOneShot(const AlgorithmInput& input) {
  const int me = input.rank;
  ScheduleBuilder builder("one_shot", Collective::kAllReduce, me, input.ranks);
  if (input.ranks > 1) {
    builder.Wait(kAllPeers, kConsumed, Input(0), kPreviousInSlot);
    builder.Copy(Stage(me, 0), Input(0));
    builder.Signal(kReady, Input(0));
  }
  builder.Lag(1);
  builder.Wait(kAllPeers, kReady, Output(0));
  std::vector<Operand> operands;
  operands.reserve(static_cast<std::size_t>(input.ranks));
  for (int rank = 0; rank < input.ranks; ++rank)
    operands.push_back({rank == me ? Input(0) : Stage(rank, 0), rank});
  builder.Reduce(Output(0), operands, Output(0));
  builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
  return builder.Build();
}

}  // namespace tidegate
