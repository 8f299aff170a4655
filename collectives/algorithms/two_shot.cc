// Two-shot reduction: a direct reduce-scatter whose results go into the stage, and a direct
// all-gather (or a gather to the root) of the results, three steps deep in one pipeline.
//
// Cost of all_reduce a rank: 2 alpha + 2 (p-1)/p * S * beta + S * gamma, two rounds a chunk; of
// reduce: the same, but the root alone copies out. Extra memory: 2 p chunks a rank. Order of
// reduction: rank 0 to p-1 for every element.
// Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004
// (reduce-scatter and all-gather), with direct exchanges.
//
// Slot reuse: the part staged for rank j is free once j shows the result of that chunk, since j has
// read all its inputs by then; the result is free once its readers show that they consumed it.

#include "collectives/algorithms/two_shot.h"

#include <vector>

#include "collectives/algorithms/sub_slots.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule TwoShot(Collective collective, const AlgorithmInput& input) {
  const int me = input.rank;
  const int ranks = input.ranks;
  const bool to_all = collective == Collective::kAllReduce;
  const bool reader = to_all || me == input.root;
  const int result = ranks - 1;  // The sub-slot behind those for the peers.

  ScheduleBuilder builder("two_shot", collective, me, ranks);
  builder.SubSlots(ranks).Parts(ranks).Lag(0);
  StageForPeers(builder, input, Channel::kResult);

  builder.Lag(1);
  std::vector<Slice> operands;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != me) builder.Wait(rank, Channel::kReady, Input(me));
    operands.push_back(rank == me ? Input(me) : Stage(rank, SubSlotFor(rank, me)));
  }
  if (reader && !to_all) {
    builder.Reduce(Output(me), operands, Input(me));
  } else {
    builder.Wait(to_all ? kAllPeers : input.root, Channel::kConsumed, Input(me), kPreviousInSlot);
    builder.Reduce(Stage(me, result), operands, Input(me));
    if (to_all) builder.Copy(Output(me), Stage(me, result));
  }
  builder.Signal(Channel::kResult, Input(me));

  if (reader) {
    builder.Lag(2);
    for (int i = 1; i < ranks; ++i) {
      const int peer = (me + i) % ranks;
      builder.Wait(peer, Channel::kResult, Output(peer));
      builder.Get(Output(peer), Stage(peer, result));
    }
    builder.Signal(Channel::kConsumed, kLongestBlock, -kPreviousInSlot);
  }
  return builder.Build();
}

}  // namespace tidegate
