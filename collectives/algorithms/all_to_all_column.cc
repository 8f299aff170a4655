// All-to-all by columns, for calls whose blocks are all equal: inside a node each rank collects
// what its node has for the ranks of other nodes that have its own place there, and sends each of
// them all of it in one message. Every rank so receives from one rank of each other node, by its
// own NIC and rail.
//
// Cost: alpha1 + alpha2 + (p-g) s (beta1 (g-1)/g + beta2) a rank, s = S/p of a pair, pipelined over
// chunks: what pairwise sends to other nodes, in n-1 messages of g blocks instead of p-g of one.
// Two rounds. On nodes of different sizes place l is served by rank l modulo the size of the
// sending node. Extra memory: 2 (2p-g-1) chunks a rank, on nodes of one size. Source:
// the all-to-all along rails of PXN ("Doubling all2all Performance with NVIDIA Collective
// Communication Library 2.12", NVIDIA 2022) and the node-aware exchange of Bienz, Gropp, Olson,
// "Node aware sparse matrix-vector multiplication", JPDC 130, 2019.
//
// A rank passes on blocks that are not its own, whose sizes it knows only where all are equal.

#include <algorithm>
#include <set>

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/builder.h"

namespace tidegate {
namespace {

/// Marks besides kReady and kConsumed.
constexpr Mark kPassed = 2;  ///< Chunk c has been put into the stages of the other nodes.
constexpr Mark kTaken = 3;   ///< What this rank's node put into its stage for chunk c is read.

/// Who passes on what, and where it lies meanwhile.
class Columns {
 public:
  explicit Columns(const Placement& placement) : placement_(placement) {
    int before = 0;
    for (int node = 0; node < placement.nodes(); ++node) {
      before_.push_back(before);
      before += SizeOf(node);
    }
  }

  int SizeOf(int node) const { return static_cast<int>(placement_.ranks_on(node).size()); }
  /// The node `distance` further on.
  int NodeAt(int node, int distance) const {
    return (node + distance + placement_.nodes()) % placement_.nodes();
  }
  /// The rank of `node` that passes on what is for `rank`, of another node.
  int RelayOf(int node, int rank) const {
    const auto place = static_cast<std::size_t>(placement_.local_of(rank) % SizeOf(node));
    return placement_.ranks_on(node)[place];
  }
  /// For whom `relay` passes on, in its order.
  std::vector<int> ServedBy(int relay) const {
    const int node = placement_.node_of(relay);
    std::vector<int> served;
    for (int distance = 1; distance < placement_.nodes(); ++distance) {
      const std::span<const int> there = placement_.ranks_on(NodeAt(node, distance));
      for (auto place = static_cast<std::size_t>(placement_.local_of(relay)); place < there.size();
           place += static_cast<std::size_t>(SizeOf(node)))
        served.push_back(there[place]);
    }
    return served;
  }

  /// Where a rank has the blocks that the `count` ranks from `first` on, of one node, send to it:
  /// in the order of nodes and places, from the one after its own.
  Slice Arrived(int owner, int first, int count = 1) const {
    const int ranks = placement_.ranks();
    return Stage(owner, (IndexOf(first) - IndexOf(owner) + ranks) % ranks - 1, count);
  }
  /// Where a relay has the blocks of the `count` ranks of its node from the `place`-th on, for the
  /// `turn`-th that it serves.
  Slice Collected(int relay, int turn, int place, int count = 1) const {
    const int size = SizeOf(placement_.node_of(relay));
    return Stage(relay, placement_.ranks() - 1 + turn * size + place, count);
  }
  /// Of the relay that has most.
  int SubSlots() const {
    int most = 0;
    std::set<int> sizes;
    for (int node = 0; node < placement_.nodes(); ++node) {
      if (!sizes.insert(SizeOf(node)).second) continue;
      const int first = placement_.ranks_on(node).front();
      most = std::max(most, static_cast<int>(ServedBy(first).size()) * SizeOf(node));
    }
    return placement_.ranks() - 1 + most;
  }
  /// As many of the caller's blocks, which are all alike, as `relay` sends to `rank` at once.
  Slice Message(int relay, int rank) const {
    const int count = SizeOf(placement_.node_of(relay));
    const int first = placement_.ranks_on(placement_.node_of(rank)).front();
    return {Buffer::kInput, -1, std::min(first, placement_.ranks() - count), count};
  }

 private:
  static Slice Stage(int owner, int sub_slot, int count) {
    return {Buffer::kStage, owner, sub_slot, count};
  }
  int IndexOf(int rank) const {
    return before_[static_cast<std::size_t>(placement_.node_of(rank))] + placement_.local_of(rank);
  }

  const Placement& placement_;
  std::vector<int> before_;  ///< By node: ranks of the nodes before it.
};

}  // namespace

Schedule AllToAllColumn(const Placement& placement, const AlgorithmInput& input) {
  const int me = input.rank;
  const int node = placement.node_of(me);
  const int place = placement.local_of(me);
  const std::span<const int> near = placement.ranks_on(node);
  const auto size = static_cast<int>(near.size());
  const auto at = [&](int distance) {
    return near[static_cast<std::size_t>((place + distance) % size)];
  };
  const Columns columns(placement);
  ScheduleBuilder builder("column", Collective::kAllToAll, me, input.ranks);
  builder.Even().SubSlots(columns.SubSlots()).Lag(0);
  for (int i = 0; i < size; ++i) {
    const int relay = at(i);
    if (relay != me) {
      builder.Wait(relay, kTaken, Input(relay), kPreviousInSlot);
      builder.Put(columns.Arrived(relay, me), Input(relay));
    }
    int turn = 0;
    for (const int rank : columns.ServedBy(relay)) {
      const Slice collected = columns.Collected(relay, turn++, place);
      if (relay == me) {
        builder.Copy(collected, Input(rank));
      } else {
        builder.Put(collected, Input(rank));
      }
    }
  }
  builder.Signal(kReady, kLongestBlock);
  builder.Lag(1);
  for (int i = 1; i < size; ++i) builder.Wait(at(i), kReady, Input(at(i)));
  int turn = 0;
  for (const int rank : columns.ServedBy(me)) {
    builder.Wait(rank, kConsumed, Input(rank), kPreviousInSlot);
    builder.MoveWhile(StepKind::kPut, columns.Arrived(rank, near.front(), size),
                      columns.Collected(me, turn++, 0, size), columns.Message(me, rank));
  }
  builder.Signal(kPassed, kLongestBlock);
  builder.Copy(Output(me), Input(me));
  for (int i = 1; i < size; ++i) builder.Copy(Output(at(i)), columns.Arrived(me, at(i)));
  builder.Signal(kTaken, kLongestBlock, -kPreviousInSlot);
  builder.Lag(2);
  for (int distance = 1; distance < placement.nodes(); ++distance) {
    const int from = columns.NodeAt(node, -distance);
    const int relay = columns.RelayOf(from, me);
    builder.Wait(relay, kPassed, Output(relay));
    for (const int rank : placement.ranks_on(from))
      builder.Copy(Output(rank), columns.Arrived(me, rank));
  }
  builder.Signal(kConsumed, kLongestBlock, -kPreviousInSlot);
  return builder.Build();
}

std::vector<WireClaim> ClaimOfAllToAllColumn(const Placement& placement,
                                             const AlgorithmInput& input) {
  std::vector<WireClaim> claims;
  for (const int to : Columns(placement).ServedBy(input.rank))
    for (const int from : placement.ranks_on(placement.node_of(input.rank)))
      claims.push_back({to, std::int64_t{from} * input.ranks + to});
  return claims;
}

}  // namespace tidegate
