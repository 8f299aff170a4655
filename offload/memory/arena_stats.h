#pragma once

#include <cstddef>
#include <string>

#include "offload/memory/numa_binding.h"
#include "offload/memory/page_kind.h"
#include "offload/memory/registrar.h"

namespace tidegate::offload {

/// What an arena holds at one moment. Bytes, of this rank's slice alone.
struct ArenaStats {
  std::size_t blocks = 0;           ///< Live.
  std::size_t requested_bytes = 0;  ///< What they were asked for, to the byte.
  std::size_t committed_bytes = 0;  ///< Pages, those of free parts that wait to be used included.
  std::size_t huge_bytes = 0;       ///< Of these, what came as pages of 2 MiB.
  std::size_t requested_high_water = 0;
  std::size_t committed_high_water = 0;
  std::size_t extent_bytes = 0;  ///< From the beginning of the slice to the end of its last block.
  std::size_t slice_bytes = 0;   ///< Addresses: the most that extent_bytes can become.
  /// What torch's pinned allocator would hold for the live blocks (TorchPinnedBytes of each).
  std::size_t torch_pinned_bytes = 0;

  PageKind pages = PageKind::kSmall;
  std::string pages_reason;  ///< Why not a better kind; empty for the best.

  PinKind pinning = PinKind::kNone;  ///< The kind of what is pinned; kNone: nothing is.
  std::size_t pinned_bytes = 0;
  std::size_t pinned_pieces = 0;
  std::string pinning_problem;  ///< Why not all committed bytes are pinned; empty: they are.

  int node = kAnyNode;            ///< NUMA node of blocks that name none.
  std::string placement_problem;  ///< Why memory was not bound to its node; empty: it was.
};

}  // namespace tidegate::offload
