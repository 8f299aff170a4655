#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/executor/request.h"

namespace tidegate::testing {

/// One collective over int32 with data that differs from rank to rank, and what must come out.
struct CollectiveCase {
  Collective collective = Collective::kAllGather;
  ReduceOp reduce_op = ReduceOp::kNone;
  int ranks = 1;
  int root = 0;
  /// Elements of rank i's block (all_gather, reduce_scatter), of the tensor (the first entry; all
  /// others but all_to_all), or of the block from rank i to rank j at [i * ranks + j] (all_to_all).
  std::vector<int> counts;
  std::uint32_t seed = 1;
  /// The output, or its part of it, is this rank's input or its part of that (all_gather,
  /// reduce_scatter, all_reduce, reduce).
  bool in_place = false;
};

std::string Describe(const CollectiveCase& test_case);
/// Whether all blocks of all ranks are equally long.
bool IsEven(const CollectiveCase& test_case);

/// The memory of all ranks for one case.
class CaseMemory {
 public:
  explicit CaseMemory(const CollectiveCase& test_case);

  /// The bytes that Place takes for `rank`.
  std::size_t BytesToPlace(int rank);
  /// Moves the inputs of `rank`, one behind the other, to `memory`, with outputs that are in place;
  /// returns the bytes of it that are used. Before the first RequestFor(rank).
  std::size_t Place(int rank, std::byte* memory);
  /// Overwrites what Place moved, as the caller of an operation that is done may.
  void Scribble(int rank);

  CollectiveRequest RequestFor(int rank);
  /// Empty when every rank's outputs are right, else the first difference.
  std::string FirstError() const;
  /// The same of one rank's outputs.
  std::string ErrorOf(int rank) const;

 private:
  using Values = std::vector<std::int32_t>;

  std::int32_t InputValue(int rank, int block, int index) const;
  Values MakeInput(int rank, int block, int count) const;
  void MakeInputs(int rank);
  /// All ranks' inputs of `block` in one.
  Values Reduced(std::size_t block) const;
  void Expect(std::size_t rank, Values values);
  bool ResultIsInput(int rank) const;
  /// What of `request` Place moves.
  const Blocks& Movable(const CollectiveRequest& request) const;

  const CollectiveCase case_;
  // By rank, then by block; each block a vector of its own, so that nothing is adjacent by
  // accident.
  std::vector<std::vector<Values>> inputs_;
  std::vector<std::vector<Values>> outputs_;
  std::vector<std::vector<Values>> expected_;
  struct Placed {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    CollectiveRequest request;
  };
  std::vector<Placed> placed_;
};

/// Cases of every collective for `ranks`: empty, single, odd and uneven counts and ones that take
/// several chunks of `chunk_elements`.
std::vector<CollectiveCase> AllCases(int ranks, int chunk_elements, std::uint32_t seed);

}  // namespace tidegate::testing
