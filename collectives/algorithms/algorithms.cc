#include "collectives/algorithms/algorithms.h"

#include <limits>
#include <utility>

#include "common/check.h"

namespace tidegate {
namespace {

constexpr std::size_t kAnySize = std::numeric_limits<std::size_t>::max();
// One-shot moves ranks times the bytes of two-shot but has one synchronisation less; both add in
// the same order, so the limit moves no bits.
constexpr std::size_t kOneShotBytes = 32 << 10;

const Algorithm& Named(Collective collective, std::string_view name) {
  const NamedAlgorithm* algorithm = FindAlgorithm(collective, name);
  TIDEGATE_CHECK(algorithm != nullptr);
  return algorithm->build;
}

}  // namespace

AlgorithmTable AlgorithmTable::Default() {
  AlgorithmTable table;
  const auto add = [&](Collective collective, std::size_t max_bytes, std::string_view name) {
    table.Add(collective, max_bytes, Named(collective, name));
  };
  add(Collective::kAllGather, kAnySize, "direct");
  add(Collective::kReduceScatter, kAnySize, "direct");
  add(Collective::kAllReduce, kOneShotBytes, "one_shot");
  add(Collective::kAllReduce, kAnySize, "direct");
  add(Collective::kBroadcast, kAnySize, "tree");
  add(Collective::kReduce, kAnySize, "two_shot");
  add(Collective::kGather, kAnySize, "direct");
  add(Collective::kScatter, kAnySize, "direct");
  add(Collective::kAllToAll, kAnySize, "direct");
  add(Collective::kBarrier, kAnySize, "arrival");
  return table;
}

void AlgorithmTable::Add(Collective collective, std::size_t max_bytes, Algorithm algorithm) {
  entries_[collective].push_back({max_bytes, std::move(algorithm)});
}

void AlgorithmTable::Clear(Collective collective) { entries_.erase(collective); }

const Algorithm* AlgorithmTable::Choose(Collective collective, std::size_t bytes) const {
  const auto found = entries_.find(collective);
  if (found == entries_.end()) return nullptr;
  for (const Entry& entry : found->second)
    if (bytes <= entry.max_bytes) return &entry.algorithm;
  return nullptr;
}

}  // namespace tidegate
