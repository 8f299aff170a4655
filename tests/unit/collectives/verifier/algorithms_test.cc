// Every algorithm, on every placement of up to 8 ranks, is proved right.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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
        // By this flag the planner takes bits for equal.
        EXPECT_TRUE(report.value().in_rank_order || !algorithm.in_one_pass(placed.placement) ||
                    !Reduces(algorithm.collective))
            << NameOf(algorithm.collective) << " " << algorithm.name << " on " << placed.name;
      }
    }
  }
}

/// Some work in one pass here and there all the same; then it is another placement that the flag is
/// missing for.
TEST(VerifiedOrderTest, WhatIsNotFlaggedAsOnePassTakesSeveralSomewhere) {
  for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
    if (!Reduces(algorithm.collective)) continue;
    bool is_flagged = true;
    bool takes_several = false;
    for (const int ranks : {4, 8}) {
      for (const NamedPlacement& placed : PlacementsOf(ranks)) {
        if (takes_several || !algorithm.serves(placed.placement)) continue;
        if (algorithm.in_one_pass(placed.placement)) continue;
        is_flagged = false;
        const AlgorithmInput input{0, ranks, 0, &placed.placement};
        const Result<Report> report = VerifyThoroughly(algorithm.collective, placed.placement, 0,
                                                       algorithm.build.Programs(input));
        ASSERT_TRUE(report.ok()) << algorithm.name << " on " << placed.name << ": "
                                 << report.status().message();
        takes_several = !report.value().in_rank_order;
      }
    }
    EXPECT_TRUE(takes_several || is_flagged)
        << NameOf(algorithm.collective) << " " << algorithm.name
        << " is one pass also where it does not say so";
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

/// Where there are more nodes than what is staged backwards has room for, and turns share words.
TEST(VerifiedColumnsTest, CirclesAreRightWhereSubSlotsAreUsedAgain) {
  const std::vector<int> uneven_nodes = {0, 0, 1, 2, 2, 2, 3, 4, 5, 5, 6, 7, 8};
  const Placement uneven = Placement::Make(uneven_nodes).value();
  struct Case {
    Placement placement;
    int groups;
  };
  for (const auto& [placement, groups] :
       {Case{Placement::Block(7, 3), 1}, Case{uneven, 1}, Case{uneven, 3},
        Case{Placement::Block(12, 2), 2}, Case{Placement::Block(16, 2), 4}}) {
    for (const int most_times : {0, 5}) {
      const auto circle = [&](int rank, int flight) {
        return CircleExchange(placement.node_of(rank), placement.nodes(),
                              {.groups = groups,
                               .most_times = most_times,
                               .wire_flight = flight,
                               .node_flight = std::min(flight, 2)});
      };
      const auto forth = [&](int rank) { return ColumnFlow(placement, rank, circle(rank, 8)); };
      const auto back = [&](int rank) { return ColumnFlow(placement, rank, circle(rank, 1), 2); };
      for (const Collective collective :
           {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce}) {
        const auto schedule_of = [&](int rank) {
          if (collective == Collective::kAllGather) return Spread(forth(rank), collective);
          if (collective == Collective::kReduceScatter) return Collect(back(rank), collective);
          return CollectAndSpread(back(rank), forth(rank));
        };
        const Result<Report> report = VerifyThoroughly(collective, placement, 0, schedule_of);
        EXPECT_TRUE(report.ok()) << NameOf(collective) << ", " << placement.nodes() << " nodes in "
                                 << groups << " groups: " << report.status().message();
      }
    }
  }
  // Of 11 arrivals there are four in a mate's part of the stage, and the mate's own block.
  const Placement pairs = Placement::Block(12, 2);
  EXPECT_EQ(ColumnFlow(pairs, 0, CircleExchange(0, 12, {}), 2).back_slots, 11 + 1 + 4);
}

/// Of more nodes than eight ranks can have: no power of two, dealt so that columns do not come in
/// the order of the nodes; and of as many as these algorithms are for.
TEST(VerifiedColumnsTest, SumsOfNodesAreCombinedInOneOrderByAll) {
  const std::vector<int> dealt = {0, 1, 2, 1, 0, 3, 4, 4, 2, 5, 6, 5, 3, 7, 8, 9, 9, 10, 8, 8, 10};
  const Placement uneven = Placement::Make(dealt).value();
  for (const char* name : {"column_one_shot", "column_doubling"}) {
    const NamedAlgorithm& algorithm = *FindAlgorithm(Collective::kAllReduce, name);
    for (const Placement& placement : {uneven, Placement::Block(13, 2), Placement::Block(64, 8)}) {
      ASSERT_TRUE(algorithm.serves(placement));
      const AlgorithmInput input{0, placement.ranks(), 0, &placement};
      EXPECT_EQ(VerifyPlan(Collective::kAllReduce, placement, 0, algorithm.build.Programs(input),
                           algorithm.build.ClaimsFor(input))
                    .message(),
                "")
          << name << " on " << placement.nodes() << " nodes";
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
