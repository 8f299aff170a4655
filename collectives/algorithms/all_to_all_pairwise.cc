// Pairwise all-to-all, even or not: each rank puts one block into the stage of every rank of the
// other nodes, and stages one for each of its own, which copy out what is for them. Each pair's
// stream has its own length, known to both ends.
//
// Cost: alpha2 + (p-g) s beta2 a rank, s = S/p of a pair, which is the bound: every byte is for one
// rank alone; beside it 2 (g-1) s beta1 inside the node. One round: a rank serves node after
// node, from its own place on, so that on nodes of one size no two send to one rank, or share one
// rail, at a time. Extra memory: 2 (p-1) chunks a rank. Source: the pairwise exchange of Thakur,
// Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
// 19(1), 2005, section 4.3, its rounds under way at once.
//
// all_to_all_column.cc collects the blocks for a node on a rank of its own: of equal blocks alone,
// since that rank passes on blocks of others, whose sizes it does not know where splits differ.

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/builder.h"

namespace tidegate {
namespace {

/// All other ranks: node after node from that of `me` on, onwards or backwards, and in each from
/// the place of `me` on the same way, which is the way of those that send to it.
std::vector<int> OthersFrom(const Placement& placement, int me, int direction) {
  const auto at = [&](int start, int distance, int count) {
    return ((start + direction * distance) % count + count) % count;
  };
  std::vector<int> others;
  for (int node = 0; node < placement.nodes(); ++node) {
    const auto there = placement.ranks_on(at(placement.node_of(me), node, placement.nodes()));
    const auto count = static_cast<int>(there.size());
    for (int place = 0; place < count; ++place) {
      const auto turn = static_cast<std::size_t>(at(placement.local_of(me), place, count));
      if (there[turn] != me) others.push_back(there[turn]);
    }
  }
  return others;
}

}  // namespace

Schedule AllToAllPairwise(const Placement& placement, const AlgorithmInput& input) {
  const int me = input.rank;
  const int ranks = input.ranks;
  const auto is_near = [&](int peer) { return placement.node_of(peer) == placement.node_of(me); };
  // Of `owner`, for what is for a rank of its node or comes from one of another.
  const auto stage = [&](int owner, int other) {
    return Stage(owner, (other - owner + ranks) % ranks - 1);
  };
  ScheduleBuilder builder("pairwise", Collective::kAllToAll, me, ranks);
  builder.SubSlots(ranks - 1).Lag(0);
  for (const int peer : OthersFrom(placement, me, +1)) {
    builder.Wait(peer, kConsumed, Input(peer), kPreviousInSlot);
    if (is_near(peer)) {
      builder.Copy(stage(me, peer), Input(peer));
    } else {
      builder.Put(stage(peer, me), Input(peer));
    }
  }
  builder.Signal(kReady, kLongestBlock);
  builder.Lag(1);
  builder.Copy(Output(me), Input(me));
  for (const int peer : OthersFrom(placement, me, -1)) {
    builder.Wait(peer, kReady, Output(peer));
    if (is_near(peer)) {
      builder.Get(Output(peer), stage(peer, me));
    } else {
      builder.Copy(Output(peer), stage(me, peer));
    }
  }
  builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
  return builder.Build();
}

std::vector<WireClaim> ClaimOfAllToAllPairwise(const Placement& placement,
                                               const AlgorithmInput& input) {
  std::vector<WireClaim> claims;
  for (int to = 0; to < input.ranks; ++to)
    if (placement.node_of(to) != placement.node_of(input.rank))
      claims.push_back({to, std::int64_t{input.rank} * input.ranks + to});
  return claims;
}

}  // namespace tidegate
