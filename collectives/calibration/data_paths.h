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
  /// From so many bytes of output on, results are written past the caches.
  std::size_t stream_bytes = std::size_t{8} << 20;

  bool operator==(const DataPaths&) const = default;
};

/// Legal values of both, for settings and files.
inline constexpr std::size_t kLeastChunkBytes = std::size_t{4} << 10;
inline constexpr std::size_t kMostChunkBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMostStreamBytes = std::size_t{1} << 40;

}  // namespace tidegate
