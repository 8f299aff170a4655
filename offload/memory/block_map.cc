#include "offload/memory/block_map.h"

#include <iterator>

#include "common/check.h"

namespace tidegate::offload {

BlockMap::BlockMap(std::size_t bytes) : bytes_(bytes) {
  TIDEGATE_CHECK(bytes % kUnit == 0);
  if (bytes > 0) AddFree(0, bytes);
}

std::optional<std::size_t> BlockMap::Take(std::size_t bytes, std::size_t alignment) {
  TIDEGATE_CHECK(bytes > 0 && alignment >= kUnit && (alignment & (alignment - 1)) == 0);
  if (bytes > bytes_) return std::nullopt;  // Before rounding, which would overflow.
  const std::size_t length = RoundUp(bytes, kUnit);
  for (auto size = free_size_.lower_bound({length, 0}); size != free_size_.end(); ++size) {
    const ByteRange range{size->second, size->second + size->first};
    const std::size_t begin = RoundUp(range.begin, alignment);
    if (begin > range.end || range.end - begin < length) continue;
    RemoveFree(free_.find(range.begin));
    if (range.begin < begin) AddFree(range.begin, begin);
    if (begin + length < range.end) AddFree(begin + length, range.end);
    live_[begin] = bytes;
    requested_ += bytes;
    taken_ += length;
    return begin;
  }
  return std::nullopt;
}

std::optional<std::size_t> BlockMap::Release(std::size_t begin) {
  const auto block = live_.find(begin);
  if (block == live_.end()) return std::nullopt;
  const std::size_t bytes = block->second;
  ByteRange range{begin, begin + RoundUp(bytes, kUnit)};
  live_.erase(block);
  requested_ -= bytes;
  taken_ -= range.bytes();
  const auto next = free_.lower_bound(begin);
  if (next != free_.begin() && std::prev(next)->second == range.begin) {
    range.begin = std::prev(next)->first;
    RemoveFree(std::prev(next));
  }
  if (next != free_.end() && next->first == range.end) {
    range.end = next->second;
    RemoveFree(next);
  }
  AddFree(range.begin, range.end);
  return bytes;
}

std::size_t BlockMap::end() const {
  if (live_.empty()) return 0;
  const auto last = std::prev(live_.end());
  return last->first + RoundUp(last->second, kUnit);
}

std::size_t BlockMap::longest_free() const {
  return free_size_.empty() ? 0 : std::prev(free_size_.end())->first;
}

std::size_t BlockMap::free_bytes() const { return bytes_ - taken_; }

void BlockMap::AddFree(std::size_t begin, std::size_t end) {
  free_[begin] = end;
  free_size_.emplace(end - begin, begin);
}

void BlockMap::RemoveFree(std::map<std::size_t, std::size_t>::iterator range) {
  free_size_.erase({range->second - range->first, range->first});
  free_.erase(range);
}

}  // namespace tidegate::offload
