// Groups too large to execute every rank of: one of each orbit stands for all.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/verifier/verifier.h"

namespace tidegate {
namespace {

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
    for (const char* name :
         {"direct", "ring", "bruck", "far_first", "column_ring", "column_bruck", "column_far_first",
          "column_pairwise", "leader_ring", "leader_bruck"}) {
      const Result<Report> all = VerifyOn(placement, collective, name, 0, 0);
      ASSERT_TRUE(all.ok()) << all.status().message();
      const Result<Report> one = VerifyOn(placement, collective, name, 4, 0);
      ASSERT_TRUE(one.ok()) << NameOf(collective) << " " << name << ": " << one.status().message();
      EXPECT_EQ(one.value().leaves, all.value().leaves) << name;
      EXPECT_EQ(one.value().enters, all.value().enters) << name;
      EXPECT_EQ(one.value().sub_slots_used, all.value().sub_slots_used) << name;
      EXPECT_EQ(one.value().order != 0, collective != Collective::kAllGather) << name;
      std::vector<Transfer> put = all.value().put;
      std::erase_if(put, [](const Transfer& transfer) { return transfer.from >= 4; });
      EXPECT_EQ(one.value().put, put) << name;
      std::vector<Transfer> read = all.value().read;
      std::erase_if(read, [](const Transfer& transfer) { return transfer.to >= 4; });
      EXPECT_EQ(one.value().read, read) << name;
      EXPECT_EQ(one.value().iterations, all.value().iterations) << name;
    }
}

class LargeSymmetryTest : public ::testing::TestWithParam<const char*> {};

TEST_P(LargeSymmetryTest, ProvesAllGatherOf16384Ranks) {
  const Placement placement = Placement::Block(2048, 8);
  const Result<Report> report = VerifyOn(placement, Collective::kAllGather, GetParam(), 8, 4);
  ASSERT_TRUE(report.ok()) << report.status().message();
  for (const std::int64_t bytes : report.value().leaves) ASSERT_EQ(bytes, 2047 * 8 * 5 * kChunk);
}

TEST_P(LargeSymmetryTest, ProvesReduceScatterOf16384Ranks) {
  const Placement placement = Placement::Block(2048, 8);
  const Result<Report> report = VerifyOn(placement, Collective::kReduceScatter, GetParam(), 8, 4);
  ASSERT_TRUE(report.ok()) << report.status().message();
  for (const std::int64_t bytes : report.value().enters) ASSERT_EQ(bytes, 2047 * 8 * 5 * kChunk);
}

INSTANTIATE_TEST_SUITE_P(Columns, LargeSymmetryTest,
                         ::testing::Values("column_bruck", "column_far_first"));

}  // namespace
}  // namespace tidegate
