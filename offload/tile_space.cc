#include "offload/tile_space.h"

#include <algorithm>

namespace tidegate::offload {
namespace {

static_assert(TileSpace::kTile % kBlock == 0);

}  // namespace

double TileSpace::SumOfBlocks(std::span<const BlockSums> blocks) {
  if (blocks.size() <= 8) {
    double sum = 0;
    for (const BlockSums& block : blocks) sum += block.squares;
    return sum;
  }
  const std::size_t half = blocks.size() / 2;
  return SumOfBlocks(blocks.first(half)) + SumOfBlocks(blocks.subspan(half));
}

void TileSpace::Cut() {
  first_blocks_.assign(1, 0);
  pieces_.clear();
  first_pieces_.assign(1, 0);
  std::size_t room = kTile;  // Of the tile that is being filled.
  for (std::size_t t = 0; t < counts_.size(); ++t) {
    for (std::size_t first = 0; first < counts_[t];) {
      const std::size_t fits = std::max(room / kBlock, std::size_t{1}) * kBlock;
      const std::size_t part = std::min(fits, counts_[t] - first);
      pieces_.push_back({t, first, part, first_blocks_.back() + first / kBlock});
      first += part;
      room -= std::min(room, part);
      if (room < kBlock) {
        first_pieces_.push_back(pieces_.size());
        room = kTile;
      }
    }
    first_blocks_.push_back(first_blocks_.back() + BlocksIn(counts_[t]));
  }
  if (first_pieces_.back() != pieces_.size()) first_pieces_.push_back(pieces_.size());
  blocks_.resize(first_blocks_.back());
  cut_ = true;
}

void TileSpace::AddUp(std::span<double> squares) const {
  const std::span<const BlockSums> all(blocks_);
  for (std::size_t t = 0; t < squares.size(); ++t)
    squares[t] =
        SumOfBlocks(all.subspan(first_blocks_[t], first_blocks_[t + 1] - first_blocks_[t]));
}

}  // namespace tidegate::offload
