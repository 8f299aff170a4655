#include "offload/step_runner.h"

#include <algorithm>

#include "common/check.h"

namespace tidegate::offload {
namespace {

/// Elements of an item. Large enough that taking one costs nothing beside it, small enough that
/// threads end together; from 16 Ki up the time of a step does not depend on it.
constexpr std::size_t kTile = 64 * 1024;
static_assert(kTile % kBlock == 0);

/// Of values in a tree whose shape depends on their number alone.
double PairwiseSum(std::span<const BlockSums> blocks) {
  if (blocks.size() <= 8) {
    double sum = 0;
    for (const BlockSums& block : blocks) sum += block.squares;
    return sum;
  }
  const std::size_t half = blocks.size() / 2;
  return PairwiseSum(blocks.first(half)) + PairwiseSum(blocks.subspan(half));
}

}  // namespace

Status StepRunner::Update(std::span<const StepTensor> tensors, std::span<double> squares) {
  TIDEGATE_CHECK(squares.empty() || squares.size() == tensors.size());
  if (!IsCutFor(tensors)) Cut(tensors);
  const bool wanted = !squares.empty();
  TIDEGATE_RETURN_IF_ERROR(RunPieces([&](const Piece& piece) {
    const StepTensor& tensor = tensors[piece.tensor];
    tensor.update(tensor.operands, piece.first, piece.count, tensor.coefficients,
                  wanted ? &blocks_[piece.block] : nullptr);
  }));
  if (wanted) AddUp(squares);
  return {};
}

Status StepRunner::Sums(std::span<const StepTensor> tensors, float factor,
                        std::span<double> squares) {
  TIDEGATE_CHECK(squares.size() == tensors.size());
  if (!IsCutFor(tensors)) Cut(tensors);
  TIDEGATE_RETURN_IF_ERROR(RunPieces([&](const Piece& piece) {
    const StepTensor& tensor = tensors[piece.tensor];
    tensor.sums(tensor.operands.gradient, piece.first, piece.count, factor, &blocks_[piece.block]);
  }));
  AddUp(squares);
  return {};
}

template <typename Body>
Status StepRunner::RunPieces(const Body& body) {
  const auto run_item = [&](std::size_t item, int) {
    for (std::size_t p = first_pieces_[item]; p < first_pieces_[item + 1]; ++p) body(pieces_[p]);
    return Status();
  };
  return pool_.Run(first_pieces_.size() - 1, run_item);
}

bool StepRunner::IsCutFor(std::span<const StepTensor> tensors) const {
  return !first_pieces_.empty() &&
         std::equal(
             counts_.begin(), counts_.end(), tensors.begin(), tensors.end(),
             [](std::size_t count, const StepTensor& t) { return count == t.operands.count; });
}

void StepRunner::Cut(std::span<const StepTensor> tensors) {
  counts_.clear();
  first_blocks_.assign(1, 0);
  pieces_.clear();
  first_pieces_.assign(1, 0);
  std::size_t room = kTile;  // Of the item that is being filled.
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::size_t count = tensors[t].operands.count;
    counts_.push_back(count);
    for (std::size_t first = 0; first < count;) {
      // A part begins and ends at a block, but for the last one of its tensor.
      const std::size_t fits = std::max(room / kBlock, std::size_t{1}) * kBlock;
      const std::size_t part = std::min(fits, count - first);
      pieces_.push_back({t, first, part, first_blocks_.back() + first / kBlock});
      first += part;
      room -= std::min(room, part);
      if (room < kBlock) {
        first_pieces_.push_back(pieces_.size());
        room = kTile;
      }
    }
    first_blocks_.push_back(first_blocks_.back() + (count + kBlock - 1) / kBlock);
  }
  if (first_pieces_.back() != pieces_.size()) first_pieces_.push_back(pieces_.size());
  blocks_.resize(first_blocks_.back());
}

void StepRunner::AddUp(std::span<double> squares) const {
  const std::span<const BlockSums> all(blocks_);
  for (std::size_t t = 0; t < squares.size(); ++t)
    squares[t] =
        PairwiseSum(all.subspan(first_blocks_[t], first_blocks_[t + 1] - first_blocks_[t]));
}

}  // namespace tidegate::offload
