// What the verifier counts is what an execution counts.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/verifier/verifier.h"
#include "tests/unit/collectives/support/adversary.h"
#include "tests/unit/collectives/support/placements.h"

namespace tidegate {
namespace {

using testing::Adversary;
using testing::AllCases;
using testing::CollectiveCase;
using testing::NamedPlacement;
using testing::PlacementsOf;

/// Bytes of the blocks of `one`, its tensor cut into `parts` as for an execution.
std::vector<std::int64_t> SizesOf(const CollectiveCase& one, int parts) {
  std::vector<std::int64_t> sizes;
  for (const int count : one.counts) sizes.push_back(std::int64_t{4} * count);
  const bool is_cut = one.collective == Collective::kAllReduce ||
                      one.collective == Collective::kBroadcast ||
                      one.collective == Collective::kReduce;
  if (!is_cut || parts == 1) return sizes;
  const std::int64_t bytes = sizes.front();
  const std::int64_t part = ((bytes + parts - 1) / parts + 63) / 64 * 64;
  sizes.clear();
  for (int i = 0; i < parts; ++i)
    sizes.push_back(std::clamp<std::int64_t>(bytes - i * part, 0, part));
  return sizes;
}

class VerifierCountersTest : public ::testing::TestWithParam<int> {};

TEST_P(VerifierCountersTest, AreThoseOfAnExecution) {
  const int ranks = GetParam();
  for (const NamedPlacement& placed : PlacementsOf(ranks)) {
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(placed.placement)) continue;
      AlgorithmTable table;
      table.Add(algorithm.collective, std::size_t{1} << 40, algorithm.build);
      std::vector<std::uint64_t> counted(static_cast<std::size_t>(ranks), 0);
      std::vector<CollectiveCase> cases;
      for (const CollectiveCase& one : AllCases(ranks, 150, 7)) {
        if (one.collective != algorithm.collective) continue;
        cases.push_back(one);
        const auto schedule_of = [&](int rank) {
          return algorithm.build({rank, ranks, std::max(one.root, 0), &placed.placement});
        };
        const Result<Report> report = Verify({.collective = one.collective,
                                              .placement = &placed.placement,
                                              .root = std::max(one.root, 0),
                                              .chunk_bytes = 512,
                                              .sizes = SizesOf(one, schedule_of(0).parts)},
                                             schedule_of);
        ASSERT_TRUE(report.ok()) << report.status().message();
        for (const RankBytes& put : report.value().put)
          counted[static_cast<std::size_t>(put.from)] += static_cast<std::uint64_t>(put.bytes);
        for (const RankBytes& read : report.value().read)
          counted[static_cast<std::size_t>(read.to)] += static_cast<std::uint64_t>(read.bytes);
      }
      Adversary adversary(ranks, 3, 64 << 10, &placed.placement);
      ASSERT_EQ(adversary.Run(cases, table), "");
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(adversary.BytesMovedBy(rank), counted[static_cast<std::size_t>(rank)])
            << NameOf(algorithm.collective) << " " << algorithm.name << " on " << placed.name
            << " rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, VerifierCountersTest, ::testing::Range(1, 9));

}  // namespace
}  // namespace tidegate
