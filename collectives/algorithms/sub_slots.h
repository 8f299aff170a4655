#pragma once

#include <algorithm>

namespace tidegate {

/// Where `owner` stages the block meant for `reader` when it stages one block for each other rank:
/// its own takes no room.
inline int SubSlotFor(int owner, int reader) { return reader < owner ? reader : reader - 1; }

/// Sub-slots of a slot that holds one block for each other rank; at least 1, for a rank alone.
inline int SubSlotsForPeers(int ranks) { return std::max(1, ranks - 1); }

}  // namespace tidegate
