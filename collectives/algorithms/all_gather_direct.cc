// Direct all-gather over memory that all ranks can read: each rank stages its shard once and every
// other rank copies it out.
//
// Cost: alpha + S/p * beta (stage) + (p-1)/p * S * beta (copy out) a rank, one round; pipelined
// over chunks, so that staging overlaps copying. Each shard is written to memory once and read p-1
// times, from the cache while chunks fit in it. Extra memory: 2 chunks a rank. No reduction.
// Source: the "direct" exchange of Thakur, Rabenseifner, Gropp, "Optimization of collective
// communication operations in MPICH", IJHPCA 19(1), 2005, section 4, with one shared copy.

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule AllGatherDirect(const AlgorithmInput& input) {
  const int me = input.rank;
  ScheduleBuilder builder("direct", Collective::kAllGather, me, input.ranks);
  builder.Lag(0);
  builder.Wait(kAllPeers, Channel::kConsumed, Input(0), kPreviousInSlot);
  builder.Copy(Stage(me, 0), Input(0));
  builder.Signal(Channel::kReady, Input(0));
  builder.Lag(1);
  builder.Copy(Output(me), Input(0));
  for (int i = 1; i < input.ranks; ++i) {
    // Each rank starts with its right neighbour, so that not all read the same shard at once.
    const int peer = (me + i) % input.ranks;
    builder.Wait(peer, Channel::kReady, Output(peer));
    builder.Get(Output(peer), Stage(peer, 0));
  }
  builder.Signal(Channel::kConsumed, kLongestBlock, -kPreviousInSlot);
  return builder.Build();
}

}  // namespace tidegate
