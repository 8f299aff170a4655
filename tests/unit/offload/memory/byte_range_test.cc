#include "offload/memory/byte_range.h"

#include <gtest/gtest.h>

#include <bitset>
#include <random>

namespace tidegate::offload {
namespace {

TEST(WholeUnitsTest, KeepsWhatFillsUnits) {
  EXPECT_EQ(WholeUnits({0, 4096}, 4096), (ByteRange{0, 4096}));
  EXPECT_EQ(WholeUnits({1, 12287}, 4096), (ByteRange{4096, 8192}));
  EXPECT_TRUE(WholeUnits({1, 4097}, 4096).empty());
  EXPECT_TRUE(WholeUnits({4096, 4096}, 4096).empty());
}

TEST(RangeSetTest, NeighboursMergeAndHolesSplit) {
  RangeSet set;
  set.Add({0, 10});
  set.Add({20, 30});
  EXPECT_EQ(set.ranges(), 2u);
  set.Add({10, 20});
  EXPECT_EQ(set.ranges(), 1u);
  EXPECT_EQ(set.bytes(), 30u);
  set.Remove({5, 6});
  EXPECT_EQ(set.ranges(), 2u);
  EXPECT_EQ(set.bytes(), 29u);
  EXPECT_EQ(set.Missing({0, 40}), (std::vector<ByteRange>{{5, 6}, {30, 40}}));
  EXPECT_EQ(set.Within({4, 8}), (std::vector<ByteRange>{{4, 5}, {6, 8}}));
  EXPECT_EQ(set.end(), 30u);
}

TEST(RangeSetTest, EmptyRangesChangeNothing) {
  RangeSet set;
  set.Add({7, 7});
  set.Remove({0, 100});
  EXPECT_EQ(set.ranges(), 0u);
  EXPECT_EQ(set.end(), 0u);
  EXPECT_TRUE(set.Missing({5, 5}).empty());
}

TEST(RangeSetTest, AgreesWithBitsInRandomPrograms) {
  constexpr std::size_t kBits = 200;
  std::mt19937 random(1);
  for (int program = 0; program < 200; ++program) {
    RangeSet set;
    std::bitset<kBits> bits;
    for (int step = 0; step < 60; ++step) {
      const std::size_t begin = random() % kBits;
      const ByteRange range{begin, begin + random() % (kBits - begin + 1)};
      const bool add = random() % 2 == 0;
      add ? set.Add(range) : set.Remove(range);
      for (std::size_t bit = range.begin; bit < range.end; ++bit) bits[bit] = add;
      ASSERT_EQ(set.bytes(), bits.count());
      std::bitset<kBits> shown;
      for (const ByteRange& part : set.Within({0, kBits}))
        for (std::size_t bit = part.begin; bit < part.end; ++bit) shown[bit] = true;
      ASSERT_EQ(shown, bits);
      ASSERT_EQ(BytesOf(set.Missing({0, kBits})), kBits - bits.count());
    }
  }
}

}  // namespace
}  // namespace tidegate::offload
