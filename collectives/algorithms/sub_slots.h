#pragma once

#include <algorithm>

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

/// Where `owner` stages the block meant for `reader` when it stages one block for each other rank:
/// its own takes no room.
inline int SubSlotFor(int owner, int reader) { return reader < owner ? reader : reader - 1; }

/// Sub-slots of a slot that holds one block for each other rank; at least 1, for a rank alone.
inline int SubSlotsForPeers(int ranks) { return std::max(1, ranks - 1); }

/// Stages one block for each other rank, starting with the right neighbour's, so that not all ranks
/// are waited for in the same order, and says that it is there. `freed_by`: the word of the reader
/// that shows that it has read what lay there before.
inline void StageForPeers(ScheduleBuilder& builder, const AlgorithmInput& input, Mark freed_by) {
  builder.Staging();
  for (int i = 1; i < input.ranks; ++i) {
    const int peer = (input.rank + i) % input.ranks;
    builder.Wait(peer, freed_by, Input(peer), kPreviousInSlot);
    builder.Copy(Stage(input.rank, SubSlotFor(input.rank, peer)), Input(peer));
  }
  builder.Signal(kReady, kLongestBlock);
  builder.Staging(false);
}

/// What `owner` staged in this way for `reader`.
inline Slice StagedFor(int reader, int owner) {
  return StagedInput(owner, SubSlotFor(owner, reader), reader);
}

}  // namespace tidegate
