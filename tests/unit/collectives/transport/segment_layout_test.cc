#include "collectives/transport/segment_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tidegate {
namespace {

struct Part {
  std::string name;
  std::size_t begin;
  std::size_t bytes;
  std::size_t alignment;
};

std::vector<Part> PartsOf(const SegmentLayout& layout) {
  std::vector<Part> parts = {{"header", 0, sizeof(SegmentHeader), 64}};
  const auto add = [&](const std::string& name, std::size_t begin, std::size_t bytes,
                       std::size_t alignment) { parts.push_back({name, begin, bytes, alignment}); };
  const auto ranks = static_cast<std::size_t>(layout.ranks);
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const std::string of_rank = " of rank " + std::to_string(rank);
    add("record" + of_rank, layout.RankRecordAt(rank), sizeof(RankRecord), alignof(RankRecord));
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::string of_lane = " of lane " + std::to_string(lane) + of_rank;
      add("words" + of_lane, layout.LaneWordsAt(lane, rank), sizeof(LaneWords), alignof(LaneWords));
      for (std::uint64_t index : {7, 8})
        add("splits " + std::to_string(index) + of_lane, layout.SplitsAt(lane, rank, index),
            2 * ranks * sizeof(std::uint64_t), alignof(std::uint64_t));
      add("stage" + of_lane, layout.StageAt(lane, rank), layout.stage_bytes, 4096);
    }
    if (layout.region_bytes > 0)
      add("region" + of_rank, layout.RegionAt(rank), layout.region_bytes, 4096);
    for (int peer = 0; peer < layout.ranks; ++peer)
      add("pair to " + std::to_string(peer) + of_rank, layout.PairChannelAt(rank, peer),
          sizeof(PairChannel), alignof(PairChannel));
  }
  return parts;
}

TEST(SegmentLayoutTest, PartsAreAlignedAndDisjointAndFillTheSegment) {
  for (const int ranks : {1, 2, 3, 4, 5, 8, kMaxRanks}) {
    for (const auto& [stage, region] :
         {std::pair{4096, 0}, std::pair{4096, 12345}, std::pair{1 << 20, 1 << 30}}) {
      const SegmentLayout layout(ranks, static_cast<std::size_t>(stage),
                                 static_cast<std::size_t>(region));
      std::vector<Part> parts = PartsOf(layout);
      std::sort(parts.begin(), parts.end(),
                [](const Part& a, const Part& b) { return a.begin < b.begin; });
      for (std::size_t i = 0; i < parts.size(); ++i) {
        EXPECT_EQ(parts[i].begin % parts[i].alignment, 0u) << parts[i].name;
        const std::size_t end = parts[i].begin + parts[i].bytes;
        if (i + 1 < parts.size())
          ASSERT_LE(end, parts[i + 1].begin) << parts[i].name << ", " << parts[i + 1].name;
        else
          EXPECT_EQ(end, layout.total_bytes()) << parts[i].name;
      }
    }
  }
}

TEST(SegmentLayoutTest, StagesAndRegionsAreWholePages) {
  EXPECT_EQ(SegmentLayout(2, 1, 4097).region_bytes, 8192u);
  EXPECT_EQ(SegmentLayout(2, 1).stage_bytes, 4096u);
  EXPECT_EQ(SegmentLayout(2, 4097).stage_bytes, 8192u);
}

TEST(SegmentLayoutTest, SplitsAlternateBetweenTwoEntries) {
  const SegmentLayout layout(3, 4096);
  EXPECT_EQ(layout.SplitsAt(1, 2, 5), layout.SplitsAt(1, 2, 7));
  EXPECT_NE(layout.SplitsAt(1, 2, 5), layout.SplitsAt(1, 2, 6));
}

TEST(SegmentLayoutTest, WhatIsCommittedWithAGroupIsSmall) {
  // 200 live groups of 4 ranks are to fit in 1 GiB, stages included.
  EXPECT_LT(SegmentLayout(4, 1 << 20).PairChannelAt(0, 0), 64u << 10);
}

TEST(SegmentLayoutTest, EveryMarkHasAWordOfItsOwn) {
  LaneWords words;
  std::set<const void*> places;
  for (Mark mark = 0; mark < kMaxMarks; ++mark) places.insert(&words.Of(mark));
  EXPECT_EQ(places.size(), std::size_t{kMaxMarks});
}

}  // namespace
}  // namespace tidegate
