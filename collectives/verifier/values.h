#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/verifier/blocks.h"
#include "collectives/verifier/orbit.h"

namespace tidegate::verifier {

/// What a cell holds: nothing, a chunk of somebody's input, or the result of a reduction.
struct Value {
  static constexpr int kNothing = -2;
  static constexpr int kPlain = -1;

  int sum = kNothing;  ///< kNothing, kPlain, or which reduction.
  int rank = -1;       ///< Whose input it is, or who reduced it.
  int block = 0;       ///< Of that rank's input; of everybody's.
  int chunk = 0;
  int bytes = 0;

  bool is_nothing() const { return sum == kNothing; }
  bool is_plain() const { return sum == kPlain; }
};

/// The reductions made so far, as trees. A tree is kept in the frame of the rank that made it.
class Values {
 public:
  Values(const Blocks& blocks, Orbit orbit);

  /// `value` as it is seen from the frame that is `by` higher.
  Value Moved(Value value, int by) const;

  bool IsPartial(const Value& value) const { return sums_[At(value)].partial; }

  /// The reduction by `rank` of `operands`, all of one block and chunk. A complete one, which is
  /// not `partial`, must take in every rank once; else `problem` says what is wrong.
  Value Add(int rank, bool partial, const std::vector<Value>& operands, std::string* problem);

  bool in_rank_order() const { return in_rank_order_; }
  std::uint64_t order() const;

  /// "chunk 2 of rank 3's input[1]".
  std::string Describe(const Value& value) const;

 private:
  struct Sum {
    int maker;
    bool partial;
    std::size_t first;
    std::size_t count;
    std::uint64_t digest;
  };

  static std::size_t At(const Value& value) { return static_cast<std::size_t>(value.sum); }
  std::uint64_t DigestOf(const std::vector<Value>& operands) const;
  std::string CheckComplete(const Value& sum);

  const Blocks& blocks_;
  const Orbit orbit_;
  std::vector<Sum> sums_;
  std::vector<Value> operands_;
  std::vector<std::uint64_t> order_;  ///< By block: digest of its reductions, 0 for none yet.
  bool in_rank_order_ = true;
  std::vector<int> seen_;  ///< By rank: the check that saw it last.
  int check_ = 0;
  std::vector<std::pair<int, int>> pending_;  ///< Of a check: sum, shift.
};

}  // namespace tidegate::verifier
