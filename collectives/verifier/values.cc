#include "collectives/verifier/values.h"

#include <algorithm>
#include <utility>

namespace tidegate::verifier {
namespace {

std::uint64_t Mix(std::uint64_t hash, std::uint64_t value) {
  // A step of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
  std::uint64_t x = hash ^ (value + 0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

Values::Values(const Blocks& blocks, Orbit orbit)
    : blocks_(blocks), orbit_(orbit), seen_(static_cast<std::size_t>(blocks.ranks()), 0) {}

Value Values::Moved(Value value, int by) const {
  if (by == 0 || value.is_nothing()) return value;
  value.rank = orbit_.Forward(value.rank, by);
  if (blocks_.Moves(Buffer::kInput)) value.block = orbit_.Forward(value.block, by);
  return value;
}

Value Values::Add(int rank, bool partial, const std::vector<Value>& operands,
                  std::string* problem) {
  const Value& first = operands.front();
  sums_.push_back({rank, partial, operands_.size(), operands.size(), DigestOf(operands)});
  operands_.insert(operands_.end(), operands.begin(), operands.end());
  const Value sum{static_cast<int>(sums_.size()) - 1, rank, first.block, first.chunk, first.bytes};
  if (!partial) *problem = CheckComplete(sum);
  return sum;
}

/// Contributions count by how far they are from the block, where blocks are numbered by ranks: so
/// the digest is the same in every frame.
std::uint64_t Values::DigestOf(const std::vector<Value>& operands) const {
  std::uint64_t digest = operands.size();
  for (const Value& operand : operands) {
    if (operand.is_plain()) {
      const int who =
          blocks_.Moves(Buffer::kInput) ? orbit_.Back(operand.rank, operand.block) : operand.rank;
      digest = Mix(digest, static_cast<std::uint64_t>(who));
    } else {
      digest = Mix(digest, sums_[At(operand)].digest);
    }
  }
  return digest == 0 ? 1 : digest;
}

std::string Values::CheckComplete(const Value& sum) {
  ++check_;
  int contributions = 0;
  pending_.assign(1, {sum.sum, 0});
  while (!pending_.empty()) {
    const auto [index, by] = pending_.back();
    pending_.pop_back();
    const Sum& node = sums_[static_cast<std::size_t>(index)];
    for (std::size_t i = node.first; i < node.first + node.count; ++i) {
      const Value operand = Moved(operands_[i], by);
      if (!operand.is_plain()) {
        const int made_at = sums_[At(operand)].maker;
        pending_.emplace_back(operand.sum, orbit_.Back(operand.rank, made_at));
        continue;
      }
      int& seen = seen_[static_cast<std::size_t>(operand.rank)];
      if (seen == check_)
        return "takes in the contribution of rank " + std::to_string(operand.rank) + " twice";
      seen = check_;
      ++contributions;
    }
  }
  if (contributions != blocks_.ranks()) {
    std::string missing;
    int listed = 0;
    for (int rank = 0; rank < blocks_.ranks() && listed < 8; ++rank)
      if (seen_[static_cast<std::size_t>(rank)] != check_ && ++listed > 0)
        missing += " " + std::to_string(rank);
    return "is the end of a reduction that lacks " +
           std::to_string(blocks_.ranks() - contributions) + " of " +
           std::to_string(blocks_.ranks()) + " contributions: those of ranks" + missing +
           (blocks_.ranks() - contributions > listed ? " ..." : "");
  }
  const Sum& made = sums_[At(sum)];
  in_rank_order_ = in_rank_order_ && static_cast<int>(made.count) == blocks_.ranks();
  const auto block = static_cast<std::size_t>(
      blocks_.Moves(Buffer::kInput) ? orbit_.RepresentativeOf(sum.block) : sum.block);
  if (order_.size() <= block) order_.resize(block + 1, 0);
  if (order_[block] != 0 && order_[block] != made.digest)
    return "combines block " + std::to_string(sum.block) +
           " in another order than another chunk or rank does, so that bits would differ";
  order_[block] = made.digest;
  return "";
}

std::uint64_t Values::order() const {
  std::uint64_t hash = order_.size();
  for (const std::uint64_t digest : order_) hash = Mix(hash, digest);
  return hash;
}

std::string Values::Describe(const Value& value) const {
  if (value.is_nothing()) return "nothing";
  const std::string chunk = "chunk " + std::to_string(value.chunk);
  const std::string rank = "rank " + std::to_string(value.rank);
  const std::string block = "[" + std::to_string(value.block) + "]";
  if (value.is_plain()) return chunk + " of " + rank + "'s input" + block;
  return chunk + (IsPartial(value) ? " of a partial sum of inputs" : " of the sum of all inputs") +
         block + " by " + rank;
}

}  // namespace tidegate::verifier
