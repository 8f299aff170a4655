#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/planned_choice.h"
#include "common/check.h"

namespace tidegate::testing {

/// Algorithms for tests that are not about their choice: per collective an ordered list of (largest
/// message in bytes, algorithm); the first whose limit is not exceeded is taken.
class AlgorithmTable {
 public:
  static constexpr std::size_t kAnySize = std::numeric_limits<std::size_t>::max();

  /// One for every collective, and two for all_reduce.
  static AlgorithmTable Default() {
    AlgorithmTable table;
    const auto add = [&](Collective collective, std::size_t max_bytes, std::string_view name) {
      const NamedAlgorithm* algorithm = FindAlgorithm(collective, name);
      TIDEGATE_CHECK(algorithm != nullptr);
      table.Add(collective, max_bytes, algorithm->build);
    };
    add(Collective::kAllGather, kAnySize, "direct");
    add(Collective::kReduceScatter, kAnySize, "direct");
    add(Collective::kAllReduce, 32 << 10, "one_shot");
    add(Collective::kAllReduce, kAnySize, "direct");
    add(Collective::kBroadcast, kAnySize, "tree");
    add(Collective::kReduce, kAnySize, "two_shot");
    add(Collective::kGather, kAnySize, "direct");
    add(Collective::kScatter, kAnySize, "direct");
    add(Collective::kAllToAll, kAnySize, "direct");
    add(Collective::kBarrier, kAnySize, "arrival");
    return table;
  }

  /// Makes `algorithm` the one for messages of at most `max_bytes` that no earlier entry serves.
  void Add(Collective collective, std::size_t max_bytes, Algorithm algorithm) {
    entries_[collective].push_back({max_bytes, std::move(algorithm)});
  }
  /// Forgets the entries of `collective`.
  void Clear(Collective collective) { entries_.erase(collective); }

  /// Null when nothing serves the request. Valid until the table changes.
  const Algorithm* Choose(Collective collective, std::size_t bytes) const {
    const auto found = entries_.find(collective);
    if (found == entries_.end()) return nullptr;
    for (const Entry& entry : found->second)
      if (bytes <= entry.max_bytes) return &entry.algorithm;
    return nullptr;
  }

  /// The table as a group of `ranks` ranks on one node takes it.
  PlanChoice ForGroup(int ranks) const {
    return {[table = *this](const PlanRequest& request) -> Result<const Algorithm*> {
              return table.Choose(request.collective, request.bytes);
            },
            Placement::OneNode(ranks)};
  }

 private:
  struct Entry {
    std::size_t max_bytes;
    Algorithm algorithm;
  };
  std::map<Collective, std::vector<Entry>> entries_;
};

}  // namespace tidegate::testing
