#include "collectives/algorithms/algorithms.h"

#include <gtest/gtest.h>

namespace tidegate {
namespace {

const Algorithm& Named(Collective collective, std::string_view name) {
  return FindAlgorithm(collective, name)->build;
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
