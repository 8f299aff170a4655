// Every algorithm, on every placement of up to 8 ranks, is proved right.

#include <gtest/gtest.h>

#include <string>

#include "collectives/algorithms/algorithms.h"
#include "collectives/verifier/verifier.h"
#include "tests/unit/collectives/support/placements.h"

namespace tidegate {
namespace {

using testing::NamedPlacement;
using testing::PlacementsOf;

class VerifiedAlgorithmsTest : public ::testing::TestWithParam<int> {};

TEST_P(VerifiedAlgorithmsTest, EveryAlgorithmIsRightOnEveryPlacement) {
  const int ranks = GetParam();
  for (const NamedPlacement& placed : PlacementsOf(ranks)) {
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(placed.placement)) continue;
      for (int root = 0; root < (IsRooted(algorithm.collective) ? ranks : 1); ++root) {
        const auto schedule_of = [&](int rank) {
          return algorithm.build({rank, ranks, root, &placed.placement});
        };
        const Result<Report> report =
            VerifyThoroughly(algorithm.collective, placed.placement, root, schedule_of);
        EXPECT_TRUE(report.ok()) << placed.name << ", root " << root << ": "
                                 << report.status().message();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, VerifiedAlgorithmsTest, ::testing::Range(1, 9));

}  // namespace
}  // namespace tidegate
