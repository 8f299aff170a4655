// Every algorithm, on every placement of up to 8 ranks, is proved right.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/flows.h"
#include "collectives/algorithms/lower.h"
#include "collectives/verifier/verifier.h"
#include "tests/unit/collectives/support/placements.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;
using testing::NamedPlacement;
using testing::PlacementsOf;

/// Whether its file says that contributions are combined from rank 0 to the last, in one pass.
bool PromisesRankOrder(const NamedAlgorithm& algorithm) {
  const bool reduces = algorithm.collective == Collective::kReduceScatter ||
                       algorithm.collective == Collective::kAllReduce ||
                       algorithm.collective == Collective::kReduce;
  return reduces && (algorithm.name == "direct" || algorithm.name == "one_shot" ||
                     algorithm.name == "two_shot");
}

class VerifiedAlgorithmsTest : public ::testing::TestWithParam<int> {};

TEST_P(VerifiedAlgorithmsTest, EveryAlgorithmIsRightOnEveryPlacement) {
  const int ranks = GetParam();
  for (const NamedPlacement& placed : PlacementsOf(ranks)) {
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(placed.placement)) continue;
      for (int root = 0; root < (IsRooted(algorithm.collective) ? ranks : 1); ++root) {
        const AlgorithmInput input{0, ranks, root, &placed.placement};
        ASSERT_TRUE(algorithm.build.has_claims()) << algorithm.name;
        const Result<Report> report =
            VerifyThoroughly(algorithm.collective, placed.placement, root,
                             algorithm.build.Programs(input), algorithm.build.ClaimsFor(input));
        ASSERT_TRUE(report.ok()) << placed.name << ", root " << root << ": "
                                 << report.status().message();
        EXPECT_TRUE(report.value().in_rank_order || !PromisesRankOrder(algorithm))
            << algorithm.name << " on " << placed.name;
      }
    }
  }
}

TEST(VerifiedColumnsTest, ChainsOfReadersAreRightBackwards) {
  const Placement uneven = Placement::Make(std::vector<int>{0, 0, 0, 0, 0, 0, 1, 1, 2}).value();
  for (const Placement& placement : {Placement::Block(2, 8), Placement::Block(3, 5), uneven}) {
    for (const int readers : {1, 2, 3, 0}) {
      const auto exchange = [&](int rank, ExchangeMaker make) {
        return make(placement.node_of(rank), placement.nodes());
      };
      const auto back = [&](int rank) {
        return ColumnFlow(placement, rank, exchange(rank, SegmentedBruckExchange<32>), readers);
      };
      const auto forth = [&](int rank) {
        return ColumnFlow(placement, rank, exchange(rank, SegmentedBruckExchange<16>));
      };
      for (const Collective collective : {Collective::kReduceScatter, Collective::kAllReduce}) {
        const auto schedule_of = [&](int rank) {
          return collective == Collective::kReduceScatter
                     ? Collect(back(rank), collective)
                     : CollectAndSpread(back(rank), forth(rank));
        };
        const Result<Report> report = VerifyThoroughly(collective, placement, 0, schedule_of);
        EXPECT_TRUE(report.ok()) << NameOf(collective) << ", " << placement.ranks() << " ranks, "
                                 << readers << " readers: " << report.status().message();
      }
    }
  }
}

TEST(VerifiedAllToAllTest, ByColumnsIsRightForEqualBlocksAlone) {
  const Placement placement = Placement::Block(2, 2);
  const AlgorithmInput input{.ranks = 4, .placement = &placement};
  const Algorithm& column = FindAlgorithm(Collective::kAllToAll, "column")->build;
  std::vector<std::int64_t> sizes(16, 3000);
  const auto message = [&](const ScheduleOf& schedule_of) {
    return Verify({.collective = Collective::kAllToAll, .placement = &placement, .sizes = sizes},
                  schedule_of)
        .status()
        .message();
  };
  EXPECT_EQ(message(column.Programs(input)), "");
  sizes[6] = 2000;
  EXPECT_THAT(message(column.Programs(input)), HasSubstr("it is for blocks of one size alone"));
  // Without saying so it takes the lengths of others' blocks from its own.
  const auto hushed = [&](int rank) {
    Schedule schedule = column.Programs(input)(rank);
    schedule.even = false;
    return schedule;
  };
  EXPECT_NE(message(hushed), "");
  EXPECT_FALSE(VerifyPlan(Collective::kAllToAll, placement, 0, hushed).ok());
  const auto half = [&](int rank) { return rank == 0 ? hushed(0) : column.Programs(input)(rank); };
  EXPECT_THAT(VerifyPlan(Collective::kAllToAll, placement, 0, half).message(),
              HasSubstr("its even is 1, and must be 0"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, VerifiedAlgorithmsTest, ::testing::Range(1, 9));

}  // namespace
}  // namespace tidegate
