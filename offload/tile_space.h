#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/optim/update.h"

namespace tidegate::offload {

/// Where element 0 of an array would lie if its element `first` lies at `memory`: operands are
/// given as from there, also where only a part of the array is in memory.
inline void* ElementZero(void* memory, std::size_t first, std::size_t element_bytes) {
  // As an integer, because it may lie before the beginning of the memory.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) - first * element_bytes);
}

/// One tensor of a step, or a part of one: where it lies and what is done to it. The operands must
/// stay valid for the duration of the call.
struct StepTensor {
  UpdateFunction update = nullptr;
  SumsFunction sums = nullptr;
  /// The pointers are to where element 0 of the tensor lies, or would lie if the memory reached
  /// that far down; `count` is that of the part.
  TensorOperands operands;
  /// Element that the part begins at, a multiple of kBlock (it ends at one or with the tensor).
  /// Only StepRunner knows parts.
  std::size_t first = 0;
  /// Where the updated parameter of the part goes as well, while it is in the cache; null: nowhere.
  /// Also StepRunner's alone.
  std::byte* copy = nullptr;
  std::size_t copy_element_bytes = 0;  ///< Of an element of the parameter.
  Coefficients coefficients;
};

/// How tensors are cut for a step: large ones into tiles, small ones bundled, so that any number of
/// tensors is one space of tiles of about the same size. The cut depends on the counts alone.
/// Keeps its memory: cutting the same tensors again allocates nothing. Externally locked.
class TileSpace {
 public:
  /// Elements of a tile. Large enough that taking one costs nothing beside it, small enough that
  /// threads end together; from 16 Ki up the time of a step does not depend on it.
  static constexpr std::size_t kTile = std::size_t{64} * 1024;

  /// A part of a tensor, at most kTile elements, that begins and ends at a block, but for the end
  /// of the tensor.
  struct Piece {
    std::size_t tensor;
    std::size_t first;
    std::size_t count;
    std::size_t block;  ///< Index of its first block among those of all tensors.
  };

  /// Cuts tensors of `count(0)`, ..., `count(tensors - 1)` elements unless it is cut for these.
  template <typename Count>
  void CutFor(std::size_t tensors, const Count& count) {
    bool same = cut_ && counts_.size() == tensors;
    for (std::size_t t = 0; same && t < tensors; ++t) same = counts_[t] == count(t);
    if (same) return;
    counts_.resize(tensors);
    for (std::size_t t = 0; t < tensors; ++t) counts_[t] = count(t);
    Cut();
  }

  std::size_t tiles() const { return first_pieces_.size() - 1; }
  /// Of tiles [tile, end), in the order of the tensors.
  std::span<const Piece> Pieces(std::size_t tile, std::size_t end) const {
    return std::span(pieces_).subspan(first_pieces_[tile],
                                      first_pieces_[end] - first_pieces_[tile]);
  }
  std::span<const Piece> Pieces(std::size_t tile) const { return Pieces(tile, tile + 1); }

  /// Room for the sums of a piece.
  BlockSums* BlocksOf(const Piece& piece) { return blocks_.data() + piece.block; }
  /// The sum of squares of each tensor, from the blocks, in a tree whose shape depends on the
  /// tensor's count alone.
  void AddUp(std::span<double> squares) const;

  /// The room for all sums: those of each tensor after those of the one before.
  std::span<const BlockSums> blocks() const { return blocks_; }
  static std::size_t BlocksIn(std::size_t count) { return (count + kBlock - 1) / kBlock; }
  /// As AddUp adds the blocks of a tensor: parts that are summed elsewhere come to the same bits.
  static double SumOfBlocks(std::span<const BlockSums> blocks);

 private:
  void Cut();

  bool cut_ = false;
  std::vector<std::size_t> counts_;
  std::vector<std::size_t> first_blocks_;  ///< Of each tensor in blocks_, and the end.
  std::vector<Piece> pieces_;
  std::vector<std::size_t> first_pieces_{0};  ///< Of each tile, and the end.
  std::vector<BlockSums> blocks_;
};

}  // namespace tidegate::offload
