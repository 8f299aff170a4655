// Wherever in an operation a rank stops, every rank that then waits can tell that it is that one,
// however many others wait in between.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/executor/execution.h"
#include "collectives/prepared_call.h"
#include "collectives/transport/loopback/loopback.h"
#include "tests/unit/collectives/support/collective_case.h"

namespace tidegate {
namespace {

using testing::AllCases;
using testing::CaseMemory;
using testing::CollectiveCase;

constexpr std::size_t kStageBytes = 16 << 10;
constexpr int kCalls = 2;

/// All ranks of a group, each of which makes the same calls as far as it gets.
class Group {
 public:
  Group(const NamedAlgorithm& algorithm, const CollectiveCase& test_case)
      : ranks_(test_case.ranks),
        group_(ranks_, kStageBytes),
        memory_(kCalls, CaseMemory(test_case)) {
    for (int rank = 0; rank < ranks_; ++rank) {
      runs_.push_back(std::make_unique<Run>(group_.transport(rank)));
      Run& run = *runs_.back();
      for (std::size_t i = 0; i < kCalls; ++i) {
        const CollectiveRequest request = memory_[i].RequestFor(rank);
        run.schedules.push_back(
            algorithm.build({.rank = rank, .ranks = ranks_, .root = std::max(0, request.root)}));
        run.requests.push_back(request);
      }
    }
  }

  bool Finished(int rank) const { return At(rank).call == kCalls; }

  /// Runs `rank` for at most `steps`, until it blocks or is through. True if it got on.
  bool Advance(int rank, int steps) {
    Run& run = At(rank);
    bool any = false;
    for (; run.call < kCalls; ++run.call, run.started = false, any = true) {
      if (!run.started) {
        run.prepared = Prepare(run.requests[run.call], run.schedules[run.call], run.call + 1,
                               kStageBytes, DataPaths{kStageBytes, 1 << 30});
        EXPECT_TRUE(run.execution.Start(Bind(run.prepared)).ok());
        run.started = true;
        any = true;
      }
      const std::uint64_t before = run.execution.progress();
      const Result<Execution::Outcome> outcome = run.execution.Advance(steps);
      EXPECT_TRUE(outcome.ok()) << outcome.status().message();
      const std::uint64_t made = run.execution.progress() - before;
      any = any || made > 0;
      if (!outcome.ok() || outcome.value() == Execution::Outcome::kBlocked) break;
      steps -= static_cast<int>(std::min<std::uint64_t>(made, static_cast<std::uint64_t>(steps)));
    }
    run.execution.PublishWait();
    return any;
  }

  /// Runs all ranks but `stopped` as far as they get.
  void AdvanceAllBut(int stopped) {
    for (bool any = true; any;) {
      any = false;
      for (int rank = 0; rank < ranks_; ++rank)
        if (rank != stopped && !Finished(rank)) any = Advance(rank, 1 << 20) || any;
    }
  }

  std::vector<int> LastAwaitedBy(int rank) const {
    std::vector<int> peers;
    At(rank).execution.LastAwaited(&peers);
    return peers;
  }
  std::vector<int> AwaitedBy(int rank) const {
    std::vector<int> peers;
    At(rank).execution.AwaitedPeers(&peers);
    return peers;
  }

 private:
  struct Run {
    explicit Run(Transport& transport) : execution(transport, /*lane=*/0) {}
    Execution execution;
    std::vector<CollectiveRequest> requests;
    std::vector<Schedule> schedules;
    PreparedCall prepared;
    std::size_t call = 0;
    bool started = false;
  };

  const Run& At(int rank) const { return *runs_[static_cast<std::size_t>(rank)]; }
  Run& At(int rank) { return *runs_[static_cast<std::size_t>(rank)]; }

  const int ranks_;
  LoopbackGroup group_;
  std::vector<CaseMemory> memory_;
  std::vector<std::unique_ptr<Run>> runs_;
};

class WaitsTest : public ::testing::TestWithParam<int> {};

TEST_P(WaitsTest, WhereverARankStopsAllThatWaitNameItAlone) {
  const int ranks = GetParam();
  int waits = 0;
  int waits_behind_others = 0;
  for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
    if (!algorithm.serves(Placement::OneNode(ranks))) continue;
    std::vector<CollectiveCase> cases = AllCases(ranks, /*chunk_elements=*/800, 7);
    std::erase_if(
        cases, [&](const CollectiveCase& one) { return one.collective != algorithm.collective; });
    ASSERT_FALSE(cases.empty());
    const CollectiveCase& longest = *std::max_element(
        cases.begin(), cases.end(), [](const CollectiveCase& a, const CollectiveCase& b) {
          return a.counts.front() < b.counts.front();
        });
    for (const int victim : std::set<int>{0, ranks / 2, ranks - 1}) {
      for (int steps = 0; steps < 200; steps += 1 + steps / 2) {
        Group group(algorithm, longest);
        // Step by step among the others, so that the victim can make all of its steps.
        for (int left = steps; left > 0 && !group.Finished(victim); --left) {
          group.AdvanceAllBut(victim);
          group.Advance(victim, 1);
        }
        if (steps == 0) group.Advance(victim, 0);
        if (group.Finished(victim)) break;
        group.AdvanceAllBut(victim);
        for (int rank = 0; rank < ranks; ++rank) {
          if (rank == victim || group.Finished(rank)) continue;
          ASSERT_EQ(group.LastAwaitedBy(rank), std::vector<int>{victim})
              << "rank " << rank << " awaits " << ::testing::PrintToString(group.AwaitedBy(rank))
              << ", " << NameOf(algorithm.collective) << " by " << algorithm.name << ", rank "
              << victim << " stopped after step " << steps;
          ++waits;
          if (group.AwaitedBy(rank) != std::vector<int>{victim}) ++waits_behind_others;
        }
      }
    }
  }
  EXPECT_GT(waits, 0);
  EXPECT_EQ(waits_behind_others > 0, ranks > 2);
}

INSTANTIATE_TEST_SUITE_P(Ranks, WaitsTest, ::testing::Values(2, 3, 4, 5, 8));

TEST(LastAwaitedTest, ARankThatHasNotComeIsNamedAlone) {
  const NamedAlgorithm* ring = FindAlgorithm(Collective::kAllGather, "ring");
  ASSERT_NE(ring, nullptr);
  Group group(*ring, {Collective::kAllGather, ReduceOp::kNone, 4, -1, {9, 9, 9, 9}, 1});
  group.AdvanceAllBut(2);
  for (const int rank : {0, 1, 3}) EXPECT_EQ(group.LastAwaitedBy(rank), std::vector<int>{2});
}

TEST(LastAwaitedTest, NobodyIsAwaitedOnceAllIsDone) {
  Group group(*FindAlgorithm(Collective::kAllGather, "ring"),
              {Collective::kAllGather, ReduceOp::kNone, 2, -1, {9, 9}, 1});
  group.AdvanceAllBut(-1);
  ASSERT_TRUE(group.Finished(0));
  EXPECT_TRUE(group.LastAwaitedBy(0).empty());
}

}  // namespace
}  // namespace tidegate
