// Every algorithm, on every placement of up to 8 ranks, run to its end over memory whose changes
// are seen late and in any order: bit for bit what the definition of the collective says.

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "tests/unit/collectives/support/adversary.h"
#include "tests/unit/collectives/support/placements.h"
#include "tests/unit/common/test_extent.h"

namespace tidegate {
namespace {

using testing::Adversary;
using testing::AllCases;
using testing::CollectiveCase;
using testing::NamedPlacement;
using testing::PlacementsOf;

constexpr std::size_t kStageBytes = 64 << 10;

class AlgorithmsRunTest : public ::testing::TestWithParam<int> {};

TEST_P(AlgorithmsRunTest, EveryAlgorithmIsRightOnEveryPlacement) {
  const int ranks = GetParam();
  // Of many ranks a third of the pairs of placement and algorithm in builds that are slow.
  const int every = testing::kIsSlowBuild && !testing::TestsAll() && ranks > 4 ? 3 : 1;
  int pair = 0;
  for (const NamedPlacement& placed : PlacementsOf(ranks)) {
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(placed.placement) || pair++ % every != 0) continue;
      testing::AlgorithmTable table;
      table.Add(algorithm.collective, std::size_t{1} << 40, algorithm.build);
      std::vector<CollectiveCase> cases;
      // Small chunks, so that there are many.
      for (const CollectiveCase& one : AllCases(ranks, 150, 7))
        if (one.collective == algorithm.collective && (IsEven(one) || !algorithm.even))
          cases.push_back(one);
      Adversary adversary(ranks, 11, kStageBytes, &placed.placement);
      ASSERT_EQ(adversary.Run(cases, table), "")
          << NameOf(algorithm.collective) << " " << algorithm.name << " on " << placed.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AlgorithmsRunTest, ::testing::Range(1, 9));

}  // namespace
}  // namespace tidegate
