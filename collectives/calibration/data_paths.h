#pragma once

#include <cstddef>

namespace tidegate {

/// How bytes best pass through the stages of this machine. Equal on all ranks of a group. Never
/// changes a bit of a result: chunks are cut between elements, and what one sums is summed in the
/// order of the plan.
struct DataPaths {
  /// Longest chunk: short enough that what one rank has staged is still in a cache when its peers
  /// read it.
  std::size_t chunk_bytes = std::size_t{256} << 10;
  /// Calls whose tensors have so many bytes on all ranks together (BytesOfAllRanks) write their
  /// results past the caches, unless they reduce in place.
  std::size_t stream_bytes = std::size_t{32} << 20;
  /// From kLeastSingleCopyBytes up to so many bytes of all blocks together, ranks read each other's
  /// tensors in the memory of their processes, where nothing is reduced and the kernel lets them;
  /// 0: never. kMostSingleCopyBytes where that is measured to be faster.
  std::size_t single_copy_bytes = 0;
  /// The same for ranks that wait for a processor (Transport::crowded): each waits once more, for
  /// the last reader of its tensor.
  std::size_t crowded_single_copy_bytes = 0;

  bool operator==(const DataPaths&) const = default;
};

/// Below it, system calls and the wait for the last reader take longer than a second copy of what
/// the ranks have just written.
inline constexpr std::size_t kLeastSingleCopyBytes = std::size_t{64} << 10;

/// Above it, staged chunks stream past the caches and single copies do not.
inline constexpr std::size_t kMostSingleCopyBytes = std::size_t{16} << 20;

/// Legal values, for settings and files.
inline constexpr std::size_t kLeastChunkBytes = std::size_t{4} << 10;
inline constexpr std::size_t kMostChunkBytes = std::size_t{1} << 30;
/// Of the sizes of calls, from 0 on: longer than any call, which is how to say "never" or "always".
inline constexpr std::size_t kMostCallBytes = std::size_t{1} << 40;

}  // namespace tidegate
