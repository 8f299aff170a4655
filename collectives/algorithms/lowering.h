#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
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

/// Whether no later hop of `hops`, in their order, has the id and time of the one at `i`.
inline bool IsLastOfId(const std::vector<const Hop*>& hops, std::size_t i) {
  return std::none_of(
      hops.begin() + static_cast<std::ptrdiff_t>(i) + 1, hops.end(),
      [&](const Hop* other) { return other->id == hops[i]->id && other->time == hops[i]->time; });
}

inline std::vector<const Hop*> ByTime(const std::vector<Hop>& hops, bool latest_first = false) {
  std::vector<const Hop*> sorted;
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
  bool copies_own = false;                       ///< To the output, because it starts elsewhere.
  int first_mark = 0;
  int first_lag = 0;
  int first_slot = 0;
};

/// The blocks whose sizes tell how long a hop is: its own, where a slice can name them.
inline Slice ExtentOf(const Hop& hop, Buffer buffer) {
  return hop.blocks.size() == 1 ? OfBlocks(buffer, hop.blocks.front()) : kLongestBlock;
}

/// Writes `flow` forwards into `builder`.
void WriteSpread(const Flow& flow, const Frame& frame, ScheduleBuilder& builder);
/// Writes `flow` backwards: what `input` names of this rank's blocks, into `result`.
void WriteCollect(const Flow& flow, const std::function<Slice(const BlockRun&)>& input,
                  Slice result, ScheduleBuilder& builder);

}  // namespace tidegate::lowering
