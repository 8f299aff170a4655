#include "offload/memory/block_map.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <vector>

#include "common/check.h"

namespace tidegate::offload {
namespace {

constexpr std::size_t kUnit = BlockMap::kUnit;

TEST(BlockMapTest, SizesAreRoundedToCacheLinesAndNoFurther) {
  BlockMap map(16 * kUnit);
  EXPECT_EQ(map.Take(1, kUnit), 0u);
  EXPECT_EQ(map.Take(kUnit + 1, kUnit), kUnit);
  EXPECT_EQ(map.Take(2 * kUnit, kUnit), 3 * kUnit);
  EXPECT_EQ(map.end(), 5 * kUnit);
  EXPECT_EQ(map.requested(), 3 * kUnit + 2);
  EXPECT_EQ(map.free_bytes(), 11 * kUnit);
}

TEST(BlockMapTest, FillsToTheLastByte) {
  BlockMap map(4 * kUnit);
  EXPECT_EQ(map.Take(4 * kUnit, kUnit), 0u);
  EXPECT_EQ(map.Take(1, kUnit), std::nullopt);
  EXPECT_EQ(map.longest_free(), 0u);
}

TEST(BlockMapTest, TakesTheSmallestHoleThatFits) {
  BlockMap map(32 * kUnit);
  const std::size_t large = *map.Take(4 * kUnit, kUnit);
  ASSERT_TRUE(map.Take(kUnit, kUnit));
  const std::size_t small = *map.Take(2 * kUnit, kUnit);
  ASSERT_TRUE(map.Take(kUnit, kUnit));
  EXPECT_EQ(map.Release(large), 4 * kUnit);
  EXPECT_EQ(map.Release(small), 2 * kUnit);
  EXPECT_EQ(map.Take(2 * kUnit, kUnit), small);
  EXPECT_EQ(map.Take(2 * kUnit, kUnit), large);
}

TEST(BlockMapTest, FreeNeighboursMergeInEveryOrder) {
  for (const std::vector<int>& order : std::vector<std::vector<int>>{
           {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
    BlockMap map(3 * kUnit);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(map.Take(kUnit, kUnit));
    for (const int i : order) ASSERT_TRUE(map.Release(static_cast<std::size_t>(i) * kUnit));
    EXPECT_EQ(map.free().size(), 1u);
    EXPECT_EQ(map.longest_free(), 3 * kUnit);
  }
}

TEST(BlockMapTest, ReleasesOnlyWhatBegins) {
  BlockMap map(8 * kUnit);
  ASSERT_EQ(map.Take(2 * kUnit, kUnit), 0u);
  EXPECT_EQ(map.Release(kUnit), std::nullopt);
  EXPECT_EQ(map.Release(5 * kUnit), std::nullopt);
  EXPECT_EQ(map.Release(0), 2 * kUnit);
  EXPECT_EQ(map.Release(0), std::nullopt);
  EXPECT_EQ(map.requested(), 0u);
}

TEST(BlockMapTest, GapsBeforeAlignedBlocksStayInUse) {
  BlockMap map(16 * 4096);
  ASSERT_EQ(map.Take(kUnit, kUnit), 0u);
  EXPECT_EQ(map.Take(4096, 4096), 4096u);
  EXPECT_EQ(map.Take(4096 - kUnit, kUnit), kUnit);  // Exactly the gap.
  EXPECT_EQ(map.end(), 8192u);
}

TEST(BlockMapTest, HugeSizesFitNowhere) {
  BlockMap map(16 * kUnit);
  for (const std::size_t bytes :
       {std::numeric_limits<std::size_t>::max(), std::numeric_limits<std::size_t>::max() - 62,
        std::size_t{1} << 63, 16 * kUnit + 1})
    EXPECT_EQ(map.Take(bytes, kUnit), std::nullopt) << bytes;
}

TEST(BlockMapTest, RefusesWhatIsNoRequest) {
  BlockMap map(16 * kUnit);
  EXPECT_THROW(map.Take(0, kUnit), InvariantError);
  EXPECT_THROW(map.Take(1, 32), InvariantError);
  EXPECT_THROW(map.Take(1, 96), InvariantError);
}

/// Blocks as a plain list of bytes that are taken; best fit as the definition says it.
class Model {
 public:
  explicit Model(std::size_t units) : taken_(units, false) {}

  std::optional<std::size_t> Take(std::size_t units, std::size_t alignment) {
    std::optional<std::size_t> best;
    std::size_t best_length = 0;
    for (std::size_t begin = 0; begin < taken_.size();) {
      std::size_t end = begin;
      while (end < taken_.size() && !taken_[end]) ++end;
      const std::size_t place = (begin + alignment - 1) / alignment * alignment;
      if (place + units <= end && (!best || end - begin < best_length)) {
        best = place;
        best_length = end - begin;
      }
      begin = end + 1;
    }
    if (best) Mark(*best, units, true);
    return best;
  }
  void Mark(std::size_t begin, std::size_t units, bool taken) {
    for (std::size_t unit = begin; unit < begin + units; ++unit) taken_[unit] = taken;
  }
  std::size_t FreeParts() const {
    std::size_t parts = 0;
    for (std::size_t unit = 0; unit < taken_.size(); ++unit)
      parts += !taken_[unit] && (unit == 0 || taken_[unit - 1]) ? 1 : 0;
    return parts;
  }

 private:
  std::vector<bool> taken_;
};

TEST(BlockMapTest, AgreesWithTheModelInRandomPrograms) {
  constexpr std::size_t kUnits = 512;
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    BlockMap map(kUnits * kUnit);
    Model model(kUnits);
    std::map<std::size_t, std::size_t> live;  // From begin to bytes.
    std::size_t requested = 0;
    for (int step = 0; step < 1000; ++step) {
      if (live.empty() || random() % 5 < 3) {
        const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 60 * kUnit : 5 * kUnit);
        const std::size_t alignment = std::size_t{1} << random() % 5;
        const auto begin = map.Take(bytes, alignment * kUnit);
        const auto expected = model.Take((bytes + kUnit - 1) / kUnit, alignment);
        ASSERT_EQ(begin.has_value(), expected.has_value());
        if (!begin) continue;
        ASSERT_EQ(*begin, *expected * kUnit) << "seed " << seed << " step " << step;
        live[*begin] = bytes;
        requested += bytes;
      } else {
        const auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
        ASSERT_EQ(map.Release(victim->first), victim->second);
        model.Mark(victim->first / kUnit, (victim->second + kUnit - 1) / kUnit, false);
        requested -= victim->second;
        live.erase(victim);
      }
      ASSERT_EQ(map.requested(), requested);
      ASSERT_EQ(map.blocks(), live.size());
      ASSERT_EQ(map.free().size(), model.FreeParts());
    }
    for (const auto& [begin, bytes] : live) ASSERT_EQ(map.Release(begin), bytes);
    EXPECT_EQ(map.free().size(), 1u);
    EXPECT_EQ(map.longest_free(), kUnits * kUnit);
  }
}

}  // namespace
}  // namespace tidegate::offload
