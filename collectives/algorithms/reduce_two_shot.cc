// Two-shot reduce: each rank reduces one part of the tensor and stages the result, which the root
// copies out, three steps deep in one pipeline.
//
// Cost a rank: 2 alpha + (p-1)/p S beta + S gamma, two rounds a chunk; the root copies out S. Extra
// memory: 2 p chunks a rank. Order of reduction: rank 0 to p-1 for every element.
// Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004
// (reduce-scatter and gather), with direct exchanges.
//
// Slot reuse: the part staged for rank j is free once j shows the result of that chunk, since j has
// read all its inputs by then; the result is free once the root shows that it consumed it.

#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/sub_slots.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule ReduceTwoShot(const AlgorithmInput& input) {
  const int me = input.rank;
  const int ranks = input.ranks;
  const bool is_root = me == input.root;
  const int result = ranks - 1;  // The sub-slot behind those for the peers.

  ScheduleBuilder builder("two_shot", Collective::kReduce, me, ranks);
  builder.Root(input.root).SubSlots(ranks).Parts(ranks).Lag(0);
  StageForPeers(builder, input, kResult);

  builder.Lag(1);
  std::vector<Operand> operands;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != me) builder.Wait(rank, kReady, Input(me));
    operands.push_back({rank == me ? Input(me) : StagedFor(me, rank), rank});
  }
  if (is_root) {
    builder.Reduce(Output(me), operands, Input(me));
  } else {
    builder.Wait(input.root, kConsumed, Input(me), kPreviousInSlot);
    builder.Reduce(Stage(me, result), operands, Input(me));
  }
  builder.Signal(kResult, Input(me));

  if (is_root) {
    builder.Lag(2);
    for (int i = 1; i < ranks; ++i) {
      const int peer = (me + i) % ranks;
      builder.Wait(peer, kResult, Output(peer));
      builder.Get(Output(peer), Stage(peer, result));
    }
    builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
  }
  return builder.Build();
}

}  // namespace tidegate
