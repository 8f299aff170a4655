#pragma once

#include <cstddef>

#include "collectives/executor/request.h"

namespace tidegate {

/// Bytes of the tensors of all `ranks` of a call together, as far as the blocks of this rank tell;
/// `in_place`: an output is the memory of an input. Results that together fit a cache are best left
/// in it; where they do not, they push out what the ranks have yet to read.
std::size_t BytesOfAllRanks(const CollectiveRequest& request, int ranks, bool in_place);

/// Whether the outputs of such a call bypass the caches, where those of at least `least` bytes (as
/// above) are to. What is reduced in place never does: its lines have just been read.
bool WritesPastCaches(const CollectiveRequest& request, int ranks, bool in_place,
                      std::size_t least);

/// Whether some output begins where an input does.
bool IsInPlace(const CollectiveRequest& request);

}  // namespace tidegate
