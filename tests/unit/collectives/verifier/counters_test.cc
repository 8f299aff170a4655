// What the verifier counts, and an algorithm claims, is what an execution counts; inside a node,
// where algorithms claim nothing, it is the least that there can be, but for one_shot and two_shot.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/verifier/verifier.h"
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

/// Bytes that all ranks of one node together take from each other for blocks of `block` bytes each
/// (all_reduce, broadcast and reduce: a tensor of a block a rank): a sum of p contributions in p
/// memories takes p - 1 moves, whatever the order. More only where it is said.
std::int64_t BytesInANode(Collective collective, const std::string& algorithm, std::int64_t ranks,
                          std::int64_t block) {
  const std::int64_t others = ranks - 1;
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return ranks * others * block;
    case Collective::kAllReduce:
      // Each rank reads all tensors, or sums go round and then results do.
      return (algorithm == "one_shot" ? ranks * others : 2 * others) * ranks * block;
    case Collective::kBroadcast:
      return others * ranks * block;
    case Collective::kReduce:
      // Where each rank sums a part, the root has to fetch the parts of the others.
      return others * ranks * block + (algorithm == "two_shot" ? others * block : 0);
    case Collective::kGather:
    case Collective::kScatter:
      return others * block;
    case Collective::kBarrier:
      return 0;
  }
  return -1;
}

TEST_P(VerifierCountersTest, InsideANodeBytesAreAFormula) {
  const int ranks = GetParam();
  const Placement placement = Placement::OneNode(ranks);
  constexpr std::int64_t kChunk = 512;
  constexpr std::int64_t kBlock = 3 * kChunk + 64;
  int tried = 0;
  for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
    if (!algorithm.serves(placement)) continue;
    const AlgorithmInput input{0, ranks, 0, &placement};
    const auto parts = static_cast<std::size_t>(algorithm.build(input).parts);
    const bool is_cut = algorithm.collective == Collective::kAllReduce ||
                        algorithm.collective == Collective::kBroadcast ||
                        algorithm.collective == Collective::kReduce;
    // The same tensor, whether or not it is cut into parts; all of them are here a part a rank.
    std::vector<std::int64_t> sizes(is_cut ? parts : 1, kBlock);
    if (is_cut) {
      ASSERT_EQ(kBlock * ranks % static_cast<std::int64_t>(parts), 0) << algorithm.name;
      sizes.assign(parts, kBlock * ranks / static_cast<std::int64_t>(parts));
    }
    const Result<Report> report = Verify({.collective = algorithm.collective,
                                          .placement = &placement,
                                          .root = 0,
                                          .chunk_bytes = kChunk,
                                          .sizes = sizes},
                                         algorithm.build.Programs(input));
    ASSERT_TRUE(report.ok()) << algorithm.name << ": " << report.status().message();
    std::int64_t moved = 0;
    for (const RankBytes& bytes : report.value().put) moved += bytes.bytes;
    for (const RankBytes& bytes : report.value().read) moved += bytes.bytes;
    EXPECT_EQ(moved, BytesInANode(algorithm.collective, algorithm.name, ranks, kBlock))
        << NameOf(algorithm.collective) << " " << algorithm.name;
    ++tried;
  }
  EXPECT_GE(tried, kCollectives);
}

INSTANTIATE_TEST_SUITE_P(Ranks, VerifierCountersTest, ::testing::Range(1, 9));

}  // namespace
}  // namespace tidegate
