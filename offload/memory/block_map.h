#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "offload/memory/byte_range.h"

namespace tidegate::offload {

/// Where the blocks of a slice lie: a table without memory behind it.
///
/// Blocks begin at multiples of kUnit and take what was asked for, rounded up to kUnit and no
/// further. Best fit, the lowest place among equals; free neighbours merge at once, so that between
/// two blocks lies at most one free range. Costs the logarithm of the number of blocks, and a step
/// for each free range that is long enough but not once its beginning is aligned. Externally
/// locked.
class BlockMap {
 public:
  /// Of a cache line: no two blocks share one.
  static constexpr std::size_t kUnit = 64;

  /// A slice of `bytes`, a multiple of kUnit, all of it free.
  explicit BlockMap(std::size_t bytes);

  /// A place for a block of `bytes` (above 0) at a multiple of `alignment` (a power of two, at
  /// least kUnit); nullopt where no free range is long enough.
  std::optional<std::size_t> Take(std::size_t bytes, std::size_t alignment);
  /// Frees the block that begins at `begin` and returns the bytes that were asked for; nullopt
  /// where none begins.
  std::optional<std::size_t> Release(std::size_t begin);

  std::size_t blocks() const { return live_.size(); }
  /// Sum of what the live blocks were asked for.
  std::size_t requested() const { return requested_; }
  /// Where the last block ends; 0: none.
  std::size_t end() const;
  std::size_t longest_free() const;
  std::size_t free_bytes() const;
  /// From begin to end, in order.
  const std::map<std::size_t, std::size_t>& free() const { return free_; }

 private:
  void AddFree(std::size_t begin, std::size_t end);
  void RemoveFree(std::map<std::size_t, std::size_t>::iterator range);

  const std::size_t bytes_;
  std::size_t requested_ = 0;
  std::size_t taken_ = 0;
  std::map<std::size_t, std::size_t> live_;                  ///< From begin to bytes asked for.
  std::map<std::size_t, std::size_t> free_;                  ///< From begin to end.
  std::set<std::pair<std::size_t, std::size_t>> free_size_;  ///< The same, as length and begin.
};

}  // namespace tidegate::offload
