#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/collectives/roofline.h"
#include "collectives/executor/request.h"
#include "common/status.h"

namespace tidegate::bench {

/// One line of the tables: a collective of fp32, SUM where it reduces, root 0 where it has one.
struct Cell {
  Collective collective = Collective::kBarrier;
  int ranks = 1;
  /// Of all blocks together, or of the tensor; a multiple of kAlignment times the ranks. 0:
  /// barrier.
  std::size_t bytes = 0;
};

/// Bytes that every rank's block is a multiple of, as torch aligns what it allocates.
inline constexpr std::size_t kAlignment = 64;

/// `bytes` cut down to what Cell wants, but at least one unit a rank; 0 for barrier.
std::size_t CellBytes(Collective collective, int ranks, std::size_t bytes);

/// Memory of a rank, from whoever gives it: aligned to kAlignment, and every page touched.
using Memory = std::shared_ptr<std::byte>;
using Allocator = std::function<Result<Memory>(std::size_t bytes)>;
/// An Allocator: of malloc, as torch's own.
Result<Memory> OrdinaryMemory(std::size_t bytes);

/// One rank's two buffers for a cell, each of the cell's bytes, and what is done with them.
class Problem {
 public:
  static Result<Problem> Make(const Cell& cell, int rank, const Allocator& allocate);

  /// Whether the cell has a second form whose output is a part of its input or the other way round.
  static bool HasInPlace(Collective collective);

  /// Refers to the buffers: valid while the problem lives.
  CollectiveRequest Request(bool in_place) const;
  /// The same amount of work without any other rank; leaves the result of nothing.
  void Roofline(Stores stores) const;
  /// Whether Roofline does anything on any rank.
  static bool HasRoofline(Collective collective);

  /// Writes the inputs, which differ from rank to rank, block to block and element to element, and
  /// destroys what is in the output.
  void Fill(bool in_place);
  /// How many elements of the output are not what Fill and Request(in_place) should give.
  std::int64_t CountWrong(bool in_place) const;
  /// Zeros, so that what is reduced in place again and again stays in range.
  void Clear();

 private:
  Problem(const Cell& cell, int rank, Memory source, Memory target);

  Block Whole(const Memory& memory) const { return {memory.get(), cell_.bytes}; }
  Block Part(const Memory& memory, int block) const;
  Blocks Parts(const Memory& memory) const;
  bool IsRoot() const { return rank_ == 0; }
  /// What is the output of this rank: nothing on some.
  Block Output(const CollectiveRequest& request) const;
  float Expected(std::size_t element) const;

  Cell cell_;
  int rank_;
  std::size_t part_bytes_;
  Memory source_;
  Memory target_;
};

}  // namespace tidegate::bench
