#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <vector>

namespace tidegate::offload {

/// Bytes [begin, end) of a slice.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t bytes() const { return end - begin; }
  bool empty() const { return begin >= end; }
  bool operator==(const ByteRange&) const = default;
};

constexpr std::size_t RoundDown(std::size_t value, std::size_t unit) {
  return value - value % unit;
}
/// REQUIRES: the result fits.
constexpr std::size_t RoundUp(std::size_t value, std::size_t unit) {
  return RoundDown(value + unit - 1, unit);
}

/// The part of `range` that consists of whole units; may be empty.
constexpr ByteRange WholeUnits(ByteRange range, std::size_t unit) {
  const std::size_t begin = RoundUp(range.begin, unit);
  const std::size_t end = RoundDown(range.end, unit);
  return begin < end ? ByteRange{begin, end} : ByteRange{begin, begin};
}

/// A set of bytes, kept as few disjoint ranges in order. Each operation costs the logarithm of
/// their number and the number of those it meets. Externally locked.
class RangeSet {
 public:
  void Add(ByteRange range);
  void Remove(ByteRange range);

  /// The parts of `range` that are in the set, in order.
  std::vector<ByteRange> Within(ByteRange range) const;
  /// The parts of `range` that are not, in order.
  std::vector<ByteRange> Missing(ByteRange range) const;

  std::size_t bytes() const { return bytes_; }
  std::size_t ranges() const { return ranges_.size(); }
  /// Where the last range ends; 0: empty.
  std::size_t end() const { return ranges_.empty() ? 0 : std::prev(ranges_.end())->second; }

 private:
  std::map<std::size_t, std::size_t> ranges_;  ///< From begin to end.
  std::size_t bytes_ = 0;
};

/// Of `ranges` together.
std::size_t BytesOf(const std::vector<ByteRange>& ranges);

}  // namespace tidegate::offload
