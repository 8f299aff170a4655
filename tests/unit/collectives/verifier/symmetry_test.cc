// Groups too large to execute every rank of: one of each orbit stands for all.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/verifier/verifier.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kChunk = 1024;

Result<Report> VerifyOn(const Placement& placement, Collective collective, const std::string& name,
                        int shift, int compared, std::int64_t chunks = 5) {
  const NamedAlgorithm* algorithm = FindAlgorithm(collective, name);
  EXPECT_NE(algorithm, nullptr);
  return Verify(
      {.collective = collective,
       .placement = &placement,
       .chunk_bytes = kChunk,
       .sizes = {chunks * kChunk},
       .shift = shift,
       .compared = compared},
      [&](int rank) { return algorithm->build({rank, placement.ranks(), 0, &placement}); });
}

TEST(VerifierSymmetryTest, AgreesWithExecutingAllRanks) {
  const Placement placement = Placement::Block(6, 4);
  for (const Collective collective :
       {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce})
    for (const char* name : {"direct", "ring", "bruck", "far_first", "column_ring", "column_bruck",
                             "column_far_first", "column_segmented_bruck",
                             "column_segmented_far_first", "column_pairwise", "leader_ring"}) {
      const Result<Report> all = VerifyOn(placement, collective, name, 0, 0);
      ASSERT_TRUE(all.ok()) << all.status().message();
      const Result<Report> one = VerifyOn(placement, collective, name, 4, 0);
      ASSERT_TRUE(one.ok()) << NameOf(collective) << " " << name << ": " << one.status().message();
      EXPECT_EQ(one.value().leaves, all.value().leaves) << name;
      EXPECT_EQ(one.value().enters, all.value().enters) << name;
      EXPECT_EQ(one.value().sub_slots_used, all.value().sub_slots_used) << name;
      EXPECT_EQ(one.value().order != 0, collective != Collective::kAllGather) << name;
      std::vector<RankBytes> put = all.value().put;
      std::erase_if(put, [](const RankBytes& transfer) { return transfer.from >= 4; });
      EXPECT_EQ(one.value().put, put) << name;
      std::vector<RankBytes> read = all.value().read;
      std::erase_if(read, [](const RankBytes& transfer) { return transfer.to >= 4; });
      EXPECT_EQ(one.value().read, read) << name;
      EXPECT_EQ(one.value().iterations, all.value().iterations) << name;
    }
}

TEST(VerifierSymmetryTest, ProvesAnAllToAllByColumns) {
  const Placement few = Placement::Block(6, 4);
  const Result<Report> all = VerifyOn(few, Collective::kAllToAll, "column", 0, 0);
  ASSERT_TRUE(all.ok()) << all.status().message();
  const Result<Report> one = VerifyOn(few, Collective::kAllToAll, "column", 4, 0);
  ASSERT_TRUE(one.ok()) << one.status().message();
  EXPECT_EQ(one.value().leaves, all.value().leaves);
  EXPECT_EQ(one.value().enters, all.value().enters);
  EXPECT_EQ(one.value().sub_slots_used, all.value().sub_slots_used);
  const Placement many = Placement::Block(128, 8);
  const Result<Report> large = VerifyOn(many, Collective::kAllToAll, "column", 8, 4);
  ASSERT_TRUE(large.ok()) << large.status().message();
  for (const std::int64_t bytes : large.value().leaves) ASSERT_EQ(bytes, 8 * 127 * 8 * 5 * kChunk);
}

/// Of memory, by this process so far.
std::int64_t PeakBytes() {
  rusage usage{};
  EXPECT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  return std::int64_t{usage.ru_maxrss} * 1024;
}
constexpr std::int64_t kMostBytes = std::int64_t{4} << 30;

class LargeSymmetryTest : public ::testing::TestWithParam<const char*> {};

TEST_P(LargeSymmetryTest, ProvesAllGatherOf16384Ranks) {
  const Placement placement = Placement::Block(2048, 8);
  const Result<Report> report = VerifyOn(placement, Collective::kAllGather, GetParam(), 8, 4);
  ASSERT_TRUE(report.ok()) << report.status().message();
  for (const std::int64_t bytes : report.value().leaves) ASSERT_EQ(bytes, 2047 * 8 * 5 * kChunk);
  EXPECT_LT(PeakBytes(), kMostBytes);
}

TEST_P(LargeSymmetryTest, ProvesReduceScatterOf16384Ranks) {
  const Placement placement = Placement::Block(2048, 8);
  const Result<Report> report = VerifyOn(placement, Collective::kReduceScatter, GetParam(), 8, 4);
  ASSERT_TRUE(report.ok()) << report.status().message();
  for (const std::int64_t bytes : report.value().enters) ASSERT_EQ(bytes, 2047 * 8 * 5 * kChunk);
  EXPECT_LT(PeakBytes(), kMostBytes);
}

INSTANTIATE_TEST_SUITE_P(Columns, LargeSymmetryTest,
                         ::testing::Values("column_bruck", "column_circle", "column_far_first",
                                           "column_ring", "column_segmented_bruck"));

TEST(VerifierSymmetryTest, ProvesCirclesBelowSwitches) {
  const Placement placement = Placement::Block(64, 4).WithSwitches(16);
  for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter}) {
    const Result<Report> report = VerifyOn(placement, collective, "column_circle", 64, 2);
    ASSERT_TRUE(report.ok()) << report.status().message();
    for (const std::int64_t bytes : report.value().enters) ASSERT_EQ(bytes, 63 * 4 * 5 * kChunk);
  }
}

TEST(VerifierSymmetryTest, RejectsSchedulesThatDoNotMoveWithTheirRanks) {
  const Placement placement = Placement::Block(4, 2);
  EXPECT_THAT(
      VerifyOn(placement, Collective::kAllGather, "recursive_doubling", 2, 0).status().message(),
      HasSubstr("is not what rank 0 does, moved by 2"));
}

TEST(VerifierSymmetryTest, FindsTheOneRankThatDiffers) {
  const Placement placement = Placement::Block(4, 4);
  const NamedAlgorithm* algorithm = FindAlgorithm(Collective::kReduceScatter, "column_ring");
  const auto verify = [&](auto&& spoil) {
    return Verify({.collective = Collective::kReduceScatter,
                   .placement = &placement,
                   .chunk_bytes = kChunk,
                   .sizes = {5 * kChunk},
                   .shift = 4,
                   .compared = 0},
                  [&](int rank) {
                    Schedule schedule = algorithm->build({rank, 16, 0, &placement});
                    if (rank == 13) spoil(schedule);
                    return schedule;
                  })
        .status()
        .message();
  };
  EXPECT_EQ(verify([](Schedule&) {}), "");
  EXPECT_THAT(
      verify([](Schedule& schedule) { std::swap(schedule.operands[0], schedule.operands[1]); }),
      HasSubstr("rank 13"));
  EXPECT_THAT(verify([](Schedule& schedule) { schedule.steps.pop_back(); }),
              HasSubstr("rank 13 ends before rank 1 does"));
  EXPECT_THAT(verify([](Schedule& schedule) {
                for (Step& step : schedule.steps)
                  if (step.kind == StepKind::kWait) ++step.lag;
              }),
              HasSubstr("rank 13, step 0"));
}

TEST(VerifierSymmetryTest, RejectsAShiftThatThePlacementHasNot) {
  const Placement placement = Placement::Block(4, 2);
  EXPECT_THAT(VerifyOn(placement, Collective::kAllGather, "ring", 1, 0).status().message(),
              HasSubstr("a shift of 1 moves rank"));
  EXPECT_THAT(VerifyOn(placement, Collective::kAllGather, "ring", 3, 0).status().message(),
              HasSubstr("a shift of 3 does not divide 8 ranks"));
}

Status VerifyLarge(const Placement& placement, Collective collective, const std::string& name,
                   void (*spoil)(Schedule&) = nullptr) {
  const NamedAlgorithm* algorithm = FindAlgorithm(collective, name);
  return VerifyPlan(collective, placement, 0, [&](int rank) {
    Schedule schedule = algorithm->build({rank, placement.ranks(), 0, &placement});
    if (spoil != nullptr) spoil(schedule);
    return schedule;
  });
}

TEST(VerifierSymmetryTest, IsHowLargePlansAreVerified) {
  const Placement placement = Placement::Block(16, 8);
  for (const char* name : {"column_bruck", "column_segmented_bruck", "column_segmented_far_first"})
    EXPECT_EQ(VerifyLarge(placement, Collective::kAllReduce, name).message(), "");
  EXPECT_EQ(VerifyLarge(placement, Collective::kAllGather, "direct").message(), "");
  EXPECT_THAT(VerifyLarge(placement, Collective::kAllGather, "column_bruck",
                          [](Schedule& schedule) { schedule.steps.pop_back(); })
                  .message(),
              HasSubstr("column_bruck rank 0"));
}

TEST(VerifierSymmetryTest, IsNotNeededWhereAllRanksCanBeExecuted) {
  std::vector<int> nodes(65, 0);
  nodes[64] = 1;
  const Placement uneven = Placement::Make(nodes).value();
  EXPECT_EQ(VerifyLarge(uneven, Collective::kReduceScatter, "column_ring").message(), "");
  const Placement even = Placement::Block(16, 8);
  EXPECT_EQ(VerifyLarge(even, Collective::kBroadcast, "tree").message(), "");
  EXPECT_EQ(VerifyLarge(even, Collective::kAllGather, "recursive_doubling").message(), "");
}

}  // namespace
}  // namespace tidegate
