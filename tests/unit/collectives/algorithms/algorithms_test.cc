#include "collectives/algorithms/algorithms.h"

#include <gtest/gtest.h>

namespace tidegate {
namespace {

const Algorithm& Named(Collective collective, std::string_view name) {
  return FindAlgorithm(collective, name)->build;
}

TEST(AlgorithmTableTest, TakesTheFirstAlgorithmWhoseLimitHolds) {
  AlgorithmTable table;
  table.Add(Collective::kAllReduce, 100, AllReduceOneShot);
  table.Add(Collective::kAllReduce, 1000, Named(Collective::kAllReduce, "ring"));
  const AlgorithmInput input{.rank = 1, .ranks = 3};
  EXPECT_EQ((*table.Choose(Collective::kAllReduce, 100))(input).name, "one_shot");
  EXPECT_EQ((*table.Choose(Collective::kAllReduce, 101))(input).name, "ring");
  EXPECT_EQ(table.Choose(Collective::kAllReduce, 1001), nullptr);
  EXPECT_EQ(table.Choose(Collective::kBroadcast, 1), nullptr);
}

TEST(AlgorithmTableTest, DefaultServesEveryCollectiveAtEverySize) {
  const AlgorithmTable table = AlgorithmTable::Default();
  for (int collective = 0; collective <= static_cast<int>(Collective::kBarrier); ++collective)
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1} << 45})
      EXPECT_NE(table.Choose(static_cast<Collective>(collective), bytes), nullptr);
}

TEST(AlgorithmsTest, StepsGrowWithRanksNotWithTheMessage) {
  EXPECT_LT(Named(Collective::kAllGather, "direct")({.rank = 3, .ranks = 64}).steps.size(),
            3u * 64u);
  EXPECT_LT(Named(Collective::kAllReduce, "direct")({.rank = 3, .ranks = 64}).steps.size(),
            6u * 64u);
}

TEST(AlgorithmsTest, ReductionsTakeTheirOperandsInRankOrder) {
  for (const Algorithm& algorithm :
       {Named(Collective::kReduceScatter, "direct"), Named(Collective::kAllReduce, "one_shot"),
        Named(Collective::kAllReduce, "direct"), Named(Collective::kReduce, "two_shot")}) {
    const Schedule schedule = algorithm({.rank = 2, .ranks = 5, .root = 1});
    ASSERT_EQ(schedule.operands.size(), 5u) << schedule.name;
    for (int rank = 0; rank < 5; ++rank) {
      const Slice& operand = schedule.operands[static_cast<std::size_t>(rank)].slice;
      if (rank == 2) {
        EXPECT_EQ(operand.buffer, Buffer::kInput);
      } else {
        EXPECT_EQ(operand.owner, rank);
      }
    }
  }
}

}  // namespace
}  // namespace tidegate
