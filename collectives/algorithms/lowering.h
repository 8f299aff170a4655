#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "collectives/algorithms/flow.h"
#include "collectives/schedule/builder.h"

namespace tidegate::lowering {

// What both directions of lower.h share; for its sources alone.

using Medium = Hop::Medium;

inline Mark SentMark(const Hop& hop) { return 2 * hop.id; }
inline Mark ReadMark(const Hop& hop) { return 2 * hop.id + 1; }

inline Slice OfBlocks(Buffer buffer, const BlockRun& run) {
  return {buffer, -1, run.first, run.count, run.stride};
}
inline Slice OfStage(int owner, int sub_slot, int count) {
  return {Buffer::kStage, owner, sub_slot, count, 1};
}

/// Calls `each` with every run and the place of its first block among all of `runs`.
template <typename Each>
void ForEachRun(const std::vector<BlockRun>& runs, Each&& each) {
  int position = 0;
  for (const BlockRun& run : runs) {
    each(run, position);
    position += run.count;
  }
}

/// Calls `each` with every block of `hop`.
template <typename Each>
void ForEachBlock(const Hop& hop, Each&& each) {
  for (const BlockRun& run : hop.blocks)
    for (int i = 0; i < run.count; ++i) each(run.first + i * run.stride);
}

/// Hops of one id and time, which share their signals.
struct HopGroup {
  std::size_t last = 0;           ///< Index of its last hop.
  int only_peer = kAllPeers;      ///< Of all its hops; kAllPeers if they have several.
  std::vector<int> readers = {};  ///< Peers of its hops inside the node, each once, in order.
};

/// Which hops, by their index, belong together. Cost: n log n.
class HopGroups {
 public:
  explicit HopGroups(const std::vector<const Hop*>& hops) {
    std::map<std::pair<int, int>, std::size_t> numbers;
    std::set<std::pair<std::size_t, int>> readers;
    for (std::size_t i = 0; i < hops.size(); ++i) {
      const Hop& hop = *hops[i];
      const auto [entry, is_new] = numbers.try_emplace({hop.time, hop.id}, groups_.size());
      const std::size_t number = entry->second;
      if (is_new) groups_.push_back({.only_peer = hop.peer});
      HopGroup& group = groups_[number];
      group.last = i;
      if (group.only_peer != hop.peer) group.only_peer = kAllPeers;
      if (hop.medium == Medium::kNode && readers.insert({number, hop.peer}).second)
        group.readers.push_back(hop.peer);
      number_of_.push_back(number);
    }
  }

  std::size_t size() const { return groups_.size(); }
  std::size_t NumberOf(std::size_t hop) const { return number_of_[hop]; }
  const HopGroup& Of(std::size_t hop) const { return groups_[number_of_[hop]]; }
  bool IsLast(std::size_t hop) const { return Of(hop).last == hop; }

 private:
  std::vector<HopGroup> groups_;
  std::vector<std::size_t> number_of_;
};

inline std::vector<const Hop*> ByTime(const std::vector<Hop>& hops, bool latest_first = false) {
  std::vector<const Hop*> sorted;
  sorted.reserve(hops.size());
  for (const Hop& hop : hops) sorted.push_back(&hop);
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Hop* a, const Hop* b) {
    return latest_first ? b->time < a->time : a->time < b->time;
  });
  return sorted;
}

/// Where the blocks of one direction lie in the caller's tensors, and what of marks, lags and
/// sub-slots an earlier direction has taken already.
struct Frame {
  std::function<Slice(const BlockRun&)> source;  ///< Of blocks that this rank owns.
  /// The input of `owner` that is `block`, -1 where it does not own it or does not read it from its
  /// input.
  std::function<int(int owner, int block)> origin;
  bool copies_own = false;  ///< To the output, because it starts elsewhere.
  int first_mark = 0;
  int first_lag = 0;
  int first_slot = 0;
};

/// Whether `hop`, whose blocks are plain input of its sender if `is_plain`, is staged in the way
/// that resident senders do without (Step::staging): slices name a single block as their origin.
inline bool StagesInput(const Hop& hop, bool is_plain) {
  return is_plain && hop.medium == Medium::kNode && CountOf(hop.blocks) == 1;
}

/// The ids of `hops` all of which `stages`: their signals tell of nothing else.
template <typename Stages>
std::set<int> StagingIds(const std::vector<const Hop*>& hops, Stages&& stages) {
  std::set<int> ids;
  for (const Hop* hop : hops) ids.insert(hop->id);
  for (const Hop* hop : hops)
    if (!stages(*hop)) ids.erase(hop->id);
  return ids;
}

/// The blocks whose sizes tell how long a hop is: its own, where a slice can name them.
inline Slice ExtentOf(const Hop& hop, Buffer buffer) {
  return hop.blocks.size() == 1 ? OfBlocks(buffer, hop.blocks.front()) : kLongestBlock;
}

/// Writes `flow` forwards into `builder`.
void WriteSpread(const Flow& flow, const Frame& frame, ScheduleBuilder& builder);
/// Writes `flow` backwards: what `input` names of this rank's blocks, each that it owns into
/// `result` of it.
void WriteCollect(const Flow& flow, const std::function<Slice(const BlockRun&)>& input,
                  const std::function<Slice(int block)>& result, ScheduleBuilder& builder);

}  // namespace tidegate::lowering
