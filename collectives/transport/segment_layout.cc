#include "collectives/transport/segment_layout.h"

namespace tidegate {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t RoundUp(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

}  // namespace

SegmentLayout::SegmentLayout(int ranks_in, std::size_t stage_bytes_in, std::size_t region_bytes_in)
    : ranks(ranks_in),
      stage_bytes(RoundUp(stage_bytes_in, kPage)),
      region_bytes(RoundUp(region_bytes_in, kPage)) {
  const auto n = static_cast<std::size_t>(ranks);
  lane_words_ = sizeof(SegmentHeader) + n * sizeof(RankRecord);
  splits_ = lane_words_ + kLanes * n * sizeof(LaneWords);
  pairs_ = RoundUp(splits_ + kLanes * n * 2 * 2 * n * sizeof(std::uint64_t), kPage);
  stages_ = RoundUp(pairs_ + n * n * sizeof(PairChannel), kPage);
  regions_ = stages_ + kLanes * n * stage_bytes;
  total_ = regions_ + n * region_bytes;
}

std::size_t SegmentLayout::RankRecordAt(int rank) const {
  return sizeof(SegmentHeader) + static_cast<std::size_t>(rank) * sizeof(RankRecord);
}

std::size_t SegmentLayout::LaneWordsAt(int lane, int rank) const {
  return lane_words_ + static_cast<std::size_t>(lane * ranks + rank) * sizeof(LaneWords);
}

std::size_t SegmentLayout::SplitsAt(int lane, int rank, std::uint64_t index) const {
  const auto row = static_cast<std::size_t>(lane * ranks + rank) * 2 + index % 2;
  return splits_ + row * 2 * static_cast<std::size_t>(ranks) * sizeof(std::uint64_t);
}

std::size_t SegmentLayout::PairChannelAt(int from, int to) const {
  return pairs_ + static_cast<std::size_t>(from * ranks + to) * sizeof(PairChannel);
}

std::size_t SegmentLayout::StageAt(int lane, int rank) const {
  return stages_ + static_cast<std::size_t>(lane * ranks + rank) * stage_bytes;
}

std::size_t SegmentLayout::RegionAt(int rank) const {
  return regions_ + static_cast<std::size_t>(rank) * region_bytes;
}

}  // namespace tidegate
