// What the verifier counts, and an algorithm claims, is what an execution counts.

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

std::int64_t BytesOf(const std::vector<WireClaim>& claims, const std::vector<std::int64_t>& sizes) {
  std::int64_t bytes = 0;
  for (const WireClaim& claim : claims)
    for (int i = 0; i < claim.count; ++i)
      bytes += sizes.size() == 1
                   ? sizes[0]
                   : sizes[static_cast<std::size_t>(claim.block + std::int64_t{i} * claim.stride)];
  return bytes;
}

class VerifierCountersTest : public ::testing::TestWithParam<int> {};

TEST_P(VerifierCountersTest, AndClaimsAreThoseOfAnExecution) {
  const int ranks = GetParam();
  for (const NamedPlacement& placed : PlacementsOf(ranks)) {
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(placed.placement)) continue;
      testing::AlgorithmTable table;
      table.Add(algorithm.collective, std::size_t{1} << 40, algorithm.build);
      std::vector<std::uint64_t> counted(static_cast<std::size_t>(ranks), 0);
      // What the algorithm claims, and what it puts inside nodes.
      std::vector<std::int64_t> put(counted.size(), 0);
      std::vector<CollectiveCase> cases;
      for (const CollectiveCase& one : AllCases(ranks, 150, 7)) {
        if (one.collective != algorithm.collective) continue;
        if (algorithm.even && !IsEven(one)) continue;
        cases.push_back(one);
        const AlgorithmInput input{0, ranks, std::max(one.root, 0), &placed.placement};
        const std::vector<std::int64_t> sizes = SizesOf(one, algorithm.build(input).parts);
        const Result<Report> report = Verify({.collective = one.collective,
                                              .placement = &placed.placement,
                                              .root = std::max(one.root, 0),
                                              .chunk_bytes = 512,
                                              .sizes = sizes},
                                             algorithm.build.Programs(input));
        ASSERT_TRUE(report.ok()) << report.status().message();
        for (const RankBytes& to : report.value().put) {
          counted[static_cast<std::size_t>(to.from)] += static_cast<std::uint64_t>(to.bytes);
          if (placed.placement.node_of(to.from) == placed.placement.node_of(to.to))
            put[static_cast<std::size_t>(to.from)] += to.bytes;
        }
        for (std::size_t rank = 0; rank < put.size(); ++rank)
          put[rank] += BytesOf(algorithm.build.ClaimsFor(input)(static_cast<int>(rank)), sizes);
        for (const RankBytes& read : report.value().read)
          counted[static_cast<std::size_t>(read.to)] += static_cast<std::uint64_t>(read.bytes);
      }
      Adversary adversary(ranks, 3, 64 << 10, &placed.placement);
      ASSERT_EQ(adversary.Run(cases, table), "");
      for (int rank = 0; rank < ranks; ++rank) {
        const std::string where = std::string(NameOf(algorithm.collective)) + " " + algorithm.name +
                                  " on " + placed.name + " rank " + std::to_string(rank);
        EXPECT_EQ(adversary.BytesMovedBy(rank), counted[static_cast<std::size_t>(rank)]) << where;
        EXPECT_EQ(adversary.BytesPutBy(rank),
                  static_cast<std::uint64_t>(put[static_cast<std::size_t>(rank)]))
            << where;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, VerifierCountersTest, ::testing::Range(1, 9));

}  // namespace
}  // namespace tidegate
