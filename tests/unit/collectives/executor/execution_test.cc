#include "collectives/executor/execution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/prepared_call.h"
#include "collectives/transport/loopback/loopback.h"
#include "tests/unit/collectives/support/adversary.h"
#include "tests/unit/collectives/support/collective_case.h"

namespace tidegate {
namespace {

using testing::Adversary;
using testing::AllCases;
using ::testing::AllOf;
using testing::CaseMemory;
using testing::CollectiveCase;
using ::testing::HasSubstr;

constexpr std::size_t kStageBytes = 16384;
/// Elements of int32 in a chunk of a schedule with one sub-slot, half a slot each.
constexpr int kChunkElements = static_cast<int>(kStageBytes / 4 / sizeof(std::int32_t));

class ExecutionTest : public ::testing::TestWithParam<int> {};

TEST_P(ExecutionTest, EveryCollectiveIsRightInOrderWhateverTheTiming) {
  const int ranks = GetParam();
  for (std::uint32_t seed = 1; seed <= 3; ++seed) {
    Adversary adversary(ranks, seed, kStageBytes);
    EXPECT_EQ(
        adversary.Run(AllCases(ranks, kChunkElements, seed), testing::AlgorithmTable::Default()),
        "");
  }
}

TEST_P(ExecutionTest, SequencesInRandomOrderReuseSlotsSafely) {
  const int ranks = GetParam();
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::vector<CollectiveCase> cases = AllCases(ranks, kChunkElements, seed);
    std::mt19937 random(seed);
    std::shuffle(cases.begin(), cases.end(), random);
    cases.resize(std::min<std::size_t>(cases.size(), 12));
    Adversary adversary(ranks, seed, kStageBytes);
    ASSERT_EQ(adversary.Run(cases, testing::AlgorithmTable::Default()), "") << "seed " << seed;
  }
}

TEST_P(ExecutionTest, CallsOfOneShapeInARowAreRightWhereverTheirMemoryLies) {
  const int ranks = GetParam();
  constexpr std::uint32_t kInARow = 5;
  std::vector<CollectiveCase> cases;
  for (CollectiveCase test_case : AllCases(ranks, kChunkElements, 1))
    for (test_case.seed = 1; test_case.seed <= kInARow; ++test_case.seed)
      cases.push_back(test_case);
  const auto is_resident = [](std::size_t number, int rank) {
    return (number + static_cast<std::size_t>(rank)) % 3 == 0;
  };
  const auto is_single_copy = [](std::size_t number, int rank) {
    return (number + static_cast<std::size_t>(rank)) % 7 == 1;
  };
  Adversary adversary(ranks, 3, kStageBytes);
  EXPECT_EQ(adversary.Run(cases, testing::AlgorithmTable::Default(), is_resident, is_single_copy),
            "");
}

TEST_P(ExecutionTest, ShortChunksAtOtherPlacesAreRight) {
  const int ranks = GetParam();
  constexpr std::size_t kLongStage = 512 << 10;
  // Some of which have two places and more, next to longer and shorter ones.
  constexpr int kPlaceElements = (10 << 10) / sizeof(std::int32_t);
  std::vector<CollectiveCase> cases(64, {Collective::kBarrier, ReduceOp::kNone, ranks, -1, {}, 1});
  for (std::uint32_t seed = 1; seed <= 2; ++seed)
    for (CollectiveCase& test_case : AllCases(ranks, kPlaceElements, seed))
      cases.push_back(std::move(test_case));
  std::mt19937 random(7);
  std::shuffle(cases.begin() + 64, cases.end(), random);
  Adversary adversary(ranks, 7, kLongStage);
  EXPECT_EQ(adversary.Run(cases, testing::AlgorithmTable::Default()), "");
}

TEST_P(ExecutionTest, OneShotAndTwoShotAllReduceGiveEqualResults) {
  const int ranks = GetParam();
  testing::AlgorithmTable table;
  for (const char* name : {"one_shot", "direct"}) {
    table.Clear(Collective::kAllReduce);
    table.Add(Collective::kAllReduce, std::size_t{1} << 40,
              FindAlgorithm(Collective::kAllReduce, name)->build);
    Adversary adversary(ranks, 5, kStageBytes);
    EXPECT_EQ(
        adversary.Run(
            {{Collective::kAllReduce, ReduceOp::kSum, ranks, -1, {3 * kChunkElements + 5}, 9}},
            table),
        "");
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExecutionTest, ::testing::Values(1, 2, 3, 4, 5, 8));

/// Sub-slots lie a chunk apart, and the length of chunks is the call's.
TEST(ExecutionStageTest, IsCommittedForChunksOfAnyLength) {
  constexpr int kRanks = 3;
  LoopbackGroup group(kRanks, kStageBytes);
  std::vector<std::pair<std::size_t, std::size_t>> commits;
  group.set_on_commit([&](int rank, std::size_t offset, std::size_t bytes) {
    if (rank == 0) commits.emplace_back(offset, bytes);
  });
  std::vector<Execution> executions;
  for (int rank = 0; rank < kRanks; ++rank)
    executions.emplace_back(group.transport(rank), /*lane=*/0);
  const NamedAlgorithm* const ring = FindAlgorithm(Collective::kAllGather, "ring");
  ASSERT_NE(ring, nullptr);
  const auto run = [&](std::uint64_t sequence, std::size_t chunk_bytes) {
    CaseMemory memory({Collective::kAllGather, ReduceOp::kNone, kRanks, -1, {64, 64, 64}, 1});
    std::vector<Schedule> schedules;
    std::vector<PreparedCall> calls;
    calls.reserve(kRanks);  // Executions refer to them.
    for (int rank = 0; rank < kRanks; ++rank)
      schedules.push_back(ring->build({.rank = rank, .ranks = kRanks}));
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      calls.push_back(Prepare(memory.RequestFor(rank), schedules[at], sequence, kStageBytes,
                              DataPaths{chunk_bytes, 1 << 30}));
      ASSERT_TRUE(executions[at].Start(Bind(calls[at])).ok());
    }
    std::vector<bool> is_done(kRanks, false);
    while (std::ranges::find(is_done, false) != is_done.end()) {
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        if (is_done[rank]) continue;
        const Result<Execution::Outcome> outcome = executions[rank].Advance();
        ASSERT_TRUE(outcome.ok()) << outcome.status().message();
        is_done[rank] = outcome.value() != Execution::Outcome::kBlocked;
      }
    }
  };
  ASSERT_GE(ring->build({.rank = 0, .ranks = kRanks}).sub_slots, 2);
  // The first and the third take the same slot.
  for (const auto& [sequence, chunk_bytes] :
       std::vector<std::pair<std::uint64_t, std::size_t>>{{1, 256}, {2, 256}, {3, 512}}) {
    commits.clear();
    run(sequence, chunk_bytes);
    const std::size_t slot = sequence == 2 ? kStageBytes / kStageSlots : 0;
    EXPECT_THAT(commits, ::testing::Contains(std::pair(slot + chunk_bytes, std::size_t{256})))
        << "call " << sequence;
  }
  commits.clear();
  run(4, 256);
  run(5, 512);
  EXPECT_THAT(commits, ::testing::IsEmpty());  // As in the calls 2 and 3.
}

/// Two ranks that begin one call each.
class MismatchTest : public ::testing::Test {
 protected:
  Result<Execution::Outcome> Begin(int rank, const CollectiveCase& test_case) {
    static const testing::AlgorithmTable table = testing::AlgorithmTable::Default();
    return BeginBy(rank, test_case, *table.Choose(test_case.collective, 1));
  }

  Result<Execution::Outcome> BeginBy(int rank, const CollectiveCase& test_case,
                                     const Algorithm& algorithm) {
    const auto i = static_cast<std::size_t>(rank);
    memory_[i] = std::make_unique<CaseMemory>(test_case);
    const CollectiveRequest request = memory_[i]->RequestFor(rank);
    schedules_[i] = algorithm({.rank = rank, .ranks = 2, .root = std::max(0, request.root)});
    calls_[i] = Prepare(request, schedules_[i], 1, kStageBytes, DataPaths{kStageBytes, 1 << 30});
    const Status started = executions_[i].Start(Bind(calls_[i]));
    if (!started.ok()) return started;
    return executions_[i].Advance();
  }

  void ExpectBothFail(const CollectiveCase& zero, const CollectiveCase& one,
                      const std::string& text) {
    const Result<Execution::Outcome> first = Begin(0, zero);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(first.value(), Execution::Outcome::kBlocked);
    const Result<Execution::Outcome> second = Begin(1, one);
    const Result<Execution::Outcome> again = executions_[0].Advance();
    for (const Result<Execution::Outcome>* result : {&second, &again}) {
      ASSERT_FALSE(result->ok());
      EXPECT_EQ(result->status().code(), StatusCode::kMismatch);
      EXPECT_NE(result->status().message().find(text), std::string::npos)
          << result->status().message();
    }
  }

  LoopbackGroup group_{2, kStageBytes};
  Execution executions_[2] = {{group_.transport(0), 0}, {group_.transport(1), 0}};
  std::unique_ptr<CaseMemory> memory_[2];
  Schedule schedules_[2];
  PreparedCall calls_[2];
};

TEST_F(MismatchTest, DifferentCollectivesFailOnBothSides) {
  ExpectBothFail({Collective::kAllGather, ReduceOp::kNone, 2, -1, {4, 4}, 1},
                 {Collective::kAllReduce, ReduceOp::kSum, 2, -1, {8}, 1},
                 "all_reduce(SUM, int32, 8 elements) seq 1");
}

TEST_F(MismatchTest, DifferentCountsFailOnBothSides) {
  ExpectBothFail({Collective::kAllReduce, ReduceOp::kSum, 2, -1, {9}, 1},
                 {Collective::kAllReduce, ReduceOp::kSum, 2, -1, {8}, 1}, "9 elements");
}

TEST_F(MismatchTest, DifferentReductionsFailOnBothSides) {
  ExpectBothFail({Collective::kAllReduce, ReduceOp::kSum, 2, -1, {8}, 1},
                 {Collective::kAllReduce, ReduceOp::kMax, 2, -1, {8}, 1}, "MAX");
}

TEST_F(MismatchTest, DifferentRootsFailOnBothSides) {
  ExpectBothFail({Collective::kBroadcast, ReduceOp::kNone, 2, 0, {8}, 1},
                 {Collective::kBroadcast, ReduceOp::kNone, 2, 1, {8}, 1}, "root 1");
}

TEST_F(MismatchTest, DifferentCutsOfOneTotalFailOnBothSides) {
  ExpectBothFail({Collective::kAllGather, ReduceOp::kNone, 2, -1, {3, 5}, 1},
                 {Collective::kAllGather, ReduceOp::kNone, 2, -1, {5, 3}, 1}, "parts differ");
}

TEST_F(MismatchTest, AllToAllNamesThePairWhoseSplitsDiffer) {
  ExpectBothFail({Collective::kAllToAll, ReduceOp::kNone, 2, -1, {1, 2, 3, 4}, 1},
                 {Collective::kAllToAll, ReduceOp::kNone, 2, -1, {1, 5, 3, 4}, 1},
                 "sends 8 bytes to rank 1");
}

/// Rank 0 runs its own all-to-all, which is even, by an algorithm of another name than rank 1.
TEST_F(MismatchTest, SizesThatDifferAreSaidBeforeTheAlgorithmsThatTheyLeadTo) {
  const auto begin = [&](int rank, const std::vector<int>& counts, const char* name) {
    const CollectiveCase one = {Collective::kAllToAll, ReduceOp::kNone, 2, -1, counts, 1};
    return BeginBy(rank, one, [&](const AlgorithmInput& input) {
      Schedule schedule = AllToAllDirect(input);
      schedule.name = name;
      return schedule;
    });
  };
  ASSERT_TRUE(begin(0, {2, 2, 2, 2}, "column").ok());
  EXPECT_THAT(begin(1, {3, 3, 3, 3}, "pairwise").status().message(),
              AllOf(HasSubstr("all_to_all splits differ: rank 1"), HasSubstr("sends 12 bytes")));
  EXPECT_THAT(executions_[0].Advance().status().message(),
              AllOf(HasSubstr("all_to_all splits differ: rank 0"), HasSubstr("sends 8 bytes")));
}

TEST_F(MismatchTest, ThatOnlySomeRanksGiveSplitsIsSaid) {
  const CollectiveCase one = {Collective::kAllToAll, ReduceOp::kNone, 2, -1, {2, 2, 2, 2}, 1};
  for (int rank = 0; rank < 2; ++rank) {
    const auto outcome = BeginBy(rank, one, [&](const AlgorithmInput& input) {
      Schedule schedule = AllToAllDirect(input);
      if (rank == 0) schedule.name = "column";
      return schedule;
    });
    EXPECT_EQ(outcome.ok(), rank == 0);
    EXPECT_THAT(outcome.status().message(),
                HasSubstr(rank == 0 ? "" : "by another; give splits on all ranks or on none"));
  }
  EXPECT_THAT(
      executions_[0].Advance().status().message(),
      AllOf(HasSubstr("by algorithm column, rank 1"), HasSubstr("by another; give splits")));
}

TEST_F(MismatchTest, WhatIsForEqualBlocksDoesNotStartOnOthers) {
  const auto even = [](const AlgorithmInput& input) {
    Schedule schedule = AllToAllDirect(input);
    schedule.even = true;
    return schedule;
  };
  EXPECT_TRUE(
      BeginBy(0, {Collective::kAllToAll, ReduceOp::kNone, 2, -1, {2, 2, 2, 2}, 1}, even).ok());
  EXPECT_EQ(BeginBy(1, {Collective::kAllToAll, ReduceOp::kNone, 2, -1, {2, 2, 3, 2}, 1}, even)
                .status()
                .message(),
            "algorithm direct is for blocks of one size; one has 8 bytes, another 12");
}

TEST_F(MismatchTest, LeavesOutputsAlone) {
  ASSERT_TRUE(Begin(0, {Collective::kAllReduce, ReduceOp::kSum, 2, -1, {8}, 1}).ok());
  ASSERT_FALSE(Begin(1, {Collective::kAllReduce, ReduceOp::kMax, 2, -1, {8}, 1}).ok());
  const auto* output =
      reinterpret_cast<const std::int32_t*>(memory_[1]->RequestFor(1).outputs[0].data);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(output[i], -123456);
}

TEST_F(MismatchTest, ARefusalFailsThePeer) {
  Fingerprint fingerprint;
  fingerprint.sequence = 1;
  fingerprint.collective = Collective::kAllReduce;
  executions_[1].Refuse(fingerprint);
  const Result<Execution::Outcome> outcome =
      Begin(0, {Collective::kAllReduce, ReduceOp::kSum, 2, -1, {8}, 1});
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.status().message().find("refused"), std::string::npos);
}

TEST_F(MismatchTest, AShortCallComesWithItsDataAndWakesItsPeersOnce) {
  int wakes = 0;
  bool has_data = false;
  group_.set_wake([&] {
    ++wakes;
    has_data = group_.transport(1).HasArrived(0, 0, 1) &&
               group_.transport(1).HasReached(0, 0, /*mark=*/0, 1);
  });
  ASSERT_TRUE(Begin(0, {Collective::kAllGather, ReduceOp::kNone, 2, -1, {4, 4}, 1}).ok());
  EXPECT_EQ(wakes, 1);
  EXPECT_TRUE(has_data);
}

TEST_F(MismatchTest, NamesThePeersItWaitsFor) {
  ASSERT_TRUE(Begin(0, {Collective::kAllGather, ReduceOp::kNone, 2, -1, {4, 4}, 1}).ok());
  std::vector<int> peers;
  executions_[0].AwaitedPeers(&peers);
  EXPECT_EQ(peers, std::vector<int>{1});
}

}  // namespace
}  // namespace tidegate
