#pragma once

#include <cstddef>
#include <vector>

namespace tidegate {

/// Which byte ranges of a file have their pages, as few disjoint intervals. Externally locked.
class CommittedRanges {
 public:
  /// True when all of [begin, end) was added; no allocation.
  bool Contains(std::size_t begin, std::size_t end) const {
    for (const Range& range : ranges_)
      if (range.begin <= begin && end <= range.end) return true;
    return begin >= end;
  }

  /// Adds [begin, end), merged with what it touches.
  void Add(std::size_t begin, std::size_t end) {
    Range merged{begin, end};
    std::erase_if(ranges_, [&merged](const Range& range) {
      if (range.end < merged.begin || merged.end < range.begin) return false;
      if (range.begin < merged.begin) merged.begin = range.begin;
      if (range.end > merged.end) merged.end = range.end;
      return true;
    });
    ranges_.push_back(merged);
  }

  std::size_t intervals() const { return ranges_.size(); }

 private:
  struct Range {
    std::size_t begin;
    std::size_t end;
  };
  std::vector<Range> ranges_;
};

}  // namespace tidegate
