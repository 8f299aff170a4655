#include "collectives/algorithms/algorithms.h"

#include <limits>

namespace tidegate {
namespace {

constexpr std::size_t kAnySize = std::numeric_limits<std::size_t>::max();
// One-shot moves ranks times the bytes of two-shot but has one synchronisation less; both add in
// the same order, so the limit moves no bits.
constexpr std::size_t kOneShotBytes = 32 << 10;

}  // namespace

AlgorithmTable AlgorithmTable::Default() {
  AlgorithmTable table;
  table.Add(Collective::kAllGather, kAnySize, AllGatherDirect);
  table.Add(Collective::kReduceScatter, kAnySize, ReduceScatterDirect);
  table.Add(Collective::kAllReduce, kOneShotBytes, AllReduceOneShot);
  table.Add(Collective::kAllReduce, kAnySize, AllReduceTwoShot);
  table.Add(Collective::kBroadcast, kAnySize, BroadcastDirect);
  table.Add(Collective::kReduce, kAnySize, ReduceTwoShot);
  table.Add(Collective::kGather, kAnySize, GatherDirect);
  table.Add(Collective::kScatter, kAnySize, ScatterDirect);
  table.Add(Collective::kAllToAll, kAnySize, AllToAllDirect);
  table.Add(Collective::kBarrier, kAnySize, BarrierArrival);
  return table;
}

void AlgorithmTable::Add(Collective collective, std::size_t max_bytes, Algorithm algorithm) {
  entries_[collective].push_back({max_bytes, algorithm});
}

void AlgorithmTable::Clear(Collective collective) { entries_.erase(collective); }

Algorithm AlgorithmTable::Choose(Collective collective, std::size_t bytes) const {
  const auto found = entries_.find(collective);
  if (found == entries_.end()) return nullptr;
  for (const Entry& entry : found->second)
    if (bytes <= entry.max_bytes) return entry.algorithm;
  return nullptr;
}

}  // namespace tidegate
