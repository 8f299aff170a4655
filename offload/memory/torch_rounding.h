#pragma once

#include <bit>
#include <cstddef>
#include <limits>

namespace tidegate::offload {

/// What torch's caching allocator of pinned memory takes for a request of `bytes` by default: the
/// next power of two, by itself and for as long as the process lives. For comparison only; the
/// greatest value where there is no such power.
constexpr std::size_t TorchPinnedBytes(std::size_t bytes) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  if (bytes == 0) return 0;
  return bytes > kMost / 2 + 1 ? kMost : std::bit_ceil(bytes);
}

}  // namespace tidegate::offload
