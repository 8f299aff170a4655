// What the verifier counts, and an algorithm claims, is what an execution counts.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "tests/unit/collectives/support/adversary.h"
#include "tests/unit/collectives/support/claimed_bytes.h"
#include "tests/unit/collectives/support/placements.h"

namespace tidegate {
namespace {

using testing::Adversary;
using testing::AllCases;
using testing::ClaimedBytes;
using testing::CollectiveCase;
using testing::MovedBytes;
using testing::NamedPlacement;
using testing::PlacementsOf;

class VerifierCountersTest : public ::testing::TestWithParam<int> {};

TEST_P(VerifierCountersTest, AndClaimsAreThoseOfAnExecution) {
  const int ranks = GetParam();
  for (const NamedPlacement& placed : PlacementsOf(ranks)) {
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(placed.placement)) continue;
      testing::AlgorithmTable table;
      table.Add(algorithm.collective, std::size_t{1} << 40, algorithm.build);
      std::vector<MovedBytes> claimed(static_cast<std::size_t>(ranks));
      std::vector<CollectiveCase> cases;
      for (const CollectiveCase& one : AllCases(ranks, 150, 7)) {
        if (one.collective != algorithm.collective) continue;
        if (algorithm.even && !IsEven(one)) continue;
        cases.push_back(one);
        const Result<std::vector<MovedBytes>> bytes =
            ClaimedBytes(algorithm, placed.placement, one);
        ASSERT_TRUE(bytes.ok()) << bytes.status().message();
        for (std::size_t rank = 0; rank < claimed.size(); ++rank)
          claimed[rank] += bytes.value()[rank];
      }
      Adversary adversary(ranks, 3, 64 << 10, &placed.placement);
      ASSERT_EQ(adversary.Run(cases, table), "");
      for (int rank = 0; rank < ranks; ++rank) {
        const std::string where = std::string(NameOf(algorithm.collective)) + " " + algorithm.name +
                                  " on " + placed.name + " rank " + std::to_string(rank);
        EXPECT_EQ(adversary.BytesPutBy(rank), claimed[static_cast<std::size_t>(rank)].put) << where;
        EXPECT_EQ(adversary.BytesReadBy(rank), claimed[static_cast<std::size_t>(rank)].read)
            << where;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, VerifierCountersTest, ::testing::Range(1, 9));

}  // namespace
}  // namespace tidegate
