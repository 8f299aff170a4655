#include "collectives/transport/shm/committed_ranges.h"

#include <gtest/gtest.h>

namespace tidegate {
namespace {

TEST(CommittedRangesTest, ContainsWhatWasAdded) {
  CommittedRanges ranges;
  EXPECT_FALSE(ranges.Contains(0, 1));
  ranges.Add(10, 20);
  EXPECT_TRUE(ranges.Contains(10, 20));
  EXPECT_TRUE(ranges.Contains(12, 15));
  EXPECT_FALSE(ranges.Contains(9, 11));
  EXPECT_FALSE(ranges.Contains(19, 21));
}

TEST(CommittedRangesTest, NothingIsAlwaysContained) {
  EXPECT_TRUE(CommittedRanges().Contains(7, 7));
}

TEST(CommittedRangesTest, MergesWhatTouches) {
  CommittedRanges ranges;
  ranges.Add(0, 10);
  ranges.Add(20, 30);
  EXPECT_EQ(ranges.intervals(), 2u);
  EXPECT_FALSE(ranges.Contains(0, 30));
  ranges.Add(10, 20);
  EXPECT_EQ(ranges.intervals(), 1u);
  EXPECT_TRUE(ranges.Contains(0, 30));
}

TEST(CommittedRangesTest, MergesWhatOverlaps) {
  CommittedRanges ranges;
  ranges.Add(5, 15);
  ranges.Add(40, 50);
  ranges.Add(0, 45);
  EXPECT_EQ(ranges.intervals(), 1u);
  EXPECT_TRUE(ranges.Contains(0, 50));
}

}  // namespace
}  // namespace tidegate
