#include "offload/memory/byte_range.h"

#include <algorithm>

namespace tidegate::offload {

void RangeSet::Add(ByteRange range) {
  if (range.empty()) return;
  auto next = ranges_.upper_bound(range.begin);
  if (next != ranges_.begin() && std::prev(next)->second >= range.begin) --next;
  while (next != ranges_.end() && next->first <= range.end) {
    range.begin = std::min(range.begin, next->first);
    range.end = std::max(range.end, next->second);
    bytes_ -= next->second - next->first;
    next = ranges_.erase(next);
  }
  ranges_.emplace_hint(next, range.begin, range.end);
  bytes_ += range.bytes();
}

void RangeSet::Remove(ByteRange range) {
  for (const ByteRange& part : Within(range)) {
    const auto whole = std::prev(ranges_.upper_bound(part.begin));
    const ByteRange was{whole->first, whole->second};
    ranges_.erase(whole);
    if (was.begin < part.begin) ranges_[was.begin] = part.begin;
    if (part.end < was.end) ranges_[part.end] = was.end;
    bytes_ -= part.bytes();
  }
}

std::vector<ByteRange> RangeSet::Within(ByteRange range) const {
  std::vector<ByteRange> parts;
  auto next = ranges_.upper_bound(range.begin);
  if (next != ranges_.begin() && std::prev(next)->second > range.begin) --next;
  for (; next != ranges_.end() && next->first < range.end; ++next)
    parts.push_back({std::max(range.begin, next->first), std::min(range.end, next->second)});
  return parts;
}

std::vector<ByteRange> RangeSet::Missing(ByteRange range) const {
  std::vector<ByteRange> parts;
  std::size_t position = range.begin;
  for (const ByteRange& present : Within(range)) {
    if (position < present.begin) parts.push_back({position, present.begin});
    position = present.end;
  }
  if (position < range.end) parts.push_back({position, range.end});
  return parts;
}

std::size_t BytesOf(const std::vector<ByteRange>& ranges) {
  std::size_t bytes = 0;
  for (const ByteRange& range : ranges) bytes += range.bytes();
  return bytes;
}

}  // namespace tidegate::offload
