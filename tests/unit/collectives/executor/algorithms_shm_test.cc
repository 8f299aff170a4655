// Every algorithm between processes, over real shared memory: the results bit for bit, and the
// bytes that each rank took from and put into the others' stages.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/executor/execution.h"
#include "collectives/prepared_call.h"
#include "tests/unit/collectives/support/claimed_bytes.h"
#include "tests/unit/collectives/support/collective_case.h"
#include "tests/unit/collectives/support/placements.h"
#include "tests/unit/collectives/transport/shm/rank_process.h"
#include "tests/unit/common/test_extent.h"

namespace tidegate {
namespace {

using testing::AllCases;
using testing::CaseMemory;
using testing::ClaimedBytes;
using testing::CollectiveCase;
using testing::MovedBytes;
using testing::NamedPlacement;
using testing::PlacementsOf;

constexpr std::size_t kRegionBytes = std::size_t{4} << 20;

/// Runs one operation of `rank` to its end.
void RunToEnd(ShmTransport& transport, Execution& execution, const CollectiveRequest& request,
              const Schedule& schedule, std::uint64_t sequence, bool single_copy) {
  PreparedCall call =
      Prepare(request, schedule, sequence, kTestStageBytes, DataPaths{kTestStageBytes, 1 << 30});
  call.single_copy = single_copy;
  call.crowded_single_copy = single_copy;
  const Status started = execution.Start(Bind(call));
  ASSERT_TRUE(started.ok()) << started.message();
  ASSERT_TRUE(SleepUntil(transport, [&] {
    const Result<Execution::Outcome> outcome = execution.Advance();
    if (outcome.ok()) return outcome.value() == Execution::Outcome::kDone;
    ADD_FAILURE() << outcome.status().message();
    return true;
  })) << schedule.name;
}

MovedBytes MovedBy(const Execution& execution) {
  return {.put = execution.bytes_to_peers(), .read = execution.bytes_from_peers()};
}

/// A case for one algorithm on one placement, and what each rank moves in it by its claim.
struct Trial {
  const NamedPlacement* placed;
  const NamedAlgorithm* algorithm;
  CollectiveCase one;
  std::vector<MovedBytes> claimed;
};

/// One in `every` of the cases of all algorithms on all placements.
std::vector<Trial> TrialsOn(const std::vector<NamedPlacement>& placements, int ranks,
                            std::size_t every) {
  std::vector<Trial> trials;
  std::size_t number = 0;
  for (const NamedPlacement& placed : placements) {
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(placed.placement)) continue;
      for (const CollectiveCase& one : AllCases(ranks, 700, 3)) {
        if (one.collective != algorithm.collective || one.root > 2) continue;
        if (algorithm.even && !IsEven(one)) continue;
        if (number++ % every != 0) continue;
        Result<std::vector<MovedBytes>> claimed = ClaimedBytes(algorithm, placed.placement, one);
        EXPECT_TRUE(claimed.ok()) << claimed.status().message();
        if (claimed.ok()) trials.push_back({&placed, &algorithm, one, std::move(claimed).value()});
      }
    }
  }
  return trials;
}

class AlgorithmsShmTest : public ::testing::TestWithParam<int> {};

TEST_P(AlgorithmsShmTest, EveryAlgorithmIsRightAndEveryRankMovesTheBytesThatItClaims) {
  const int ranks = GetParam();
  // More ranks than cores take their time: every algorithm meets every size on some placement.
  const std::size_t every = testing::TestsAll() || ranks < 4 ? 1 : 9;
  const std::vector<NamedPlacement> placements = PlacementsOf(ranks);
  const std::vector<Trial> trials = TrialsOn(placements, ranks, every);
  ASSERT_FALSE(trials.empty());
  const TestGroup group(ranks);
  Board read;
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back(std::make_unique<RankProcess>([&, rank] {
      FileBootstrap bootstrap(group.path());
      ShmTransport::Options options = group.Options(rank, bootstrap);
      options.region_bytes = kRegionBytes;
      Result<std::unique_ptr<ShmTransport>> attached = ShmTransport::Attach(options);
      ASSERT_TRUE(attached.ok()) << attached.status().message();
      const std::unique_ptr<ShmTransport> transport = std::move(attached).value();
      Execution execution(*transport, /*lane=*/0);
      std::uint64_t sequence = 0;
      for (const Trial& trial : trials) {
        CaseMemory memory(trial.one);
        // Every other case of every rank with its inputs in the segment, each rank its own.
        std::shared_ptr<std::byte> region;
        if ((sequence + static_cast<std::uint64_t>(rank) * (sequence / 2)) % 2 == 0) {
          region = transport->Allocate(kRegionBytes / 2).value();
          memory.Place(rank, region.get());
        }
        const CollectiveRequest request = memory.RequestFor(rank);
        const Schedule schedule = trial.algorithm->build({.rank = rank,
                                                          .ranks = ranks,
                                                          .root = std::max(trial.one.root, 0),
                                                          .placement = &trial.placed->placement});
        const MovedBytes before = MovedBy(execution);
        ++sequence;
        // Of the rest, two of three with inputs that others read in this process.
        ASSERT_NO_FATAL_FAILURE(
            RunToEnd(*transport, execution, request, schedule, sequence, sequence % 3 != 0));
        const std::string where = std::string(NameOf(trial.one.collective)) + " " +
                                  trial.algorithm->name + " on " + trial.placed->name + " rank " +
                                  std::to_string(rank) + ": " + Describe(trial.one);
        ASSERT_EQ(memory.ErrorOf(rank), "") << where;
        memory.Scribble(rank);
        MovedBytes claimed = trial.claimed[static_cast<std::size_t>(rank)];
        claimed += before;
        ASSERT_EQ(MovedBy(execution).put, claimed.put) << where;
        ASSERT_EQ(MovedBy(execution).read, claimed.read) << where;
      }
      read[0] += static_cast<std::int64_t>(execution.resident_bytes());
      read[1] += static_cast<std::int64_t>(execution.single_copy_bytes());
      read[2] += transport->PeersReadMemory() ? 1 : 0;
    }));
  }
  for (const std::unique_ptr<RankProcess>& process : processes)
    ASSERT_TRUE(process->Succeeded(/*limit_ms=*/500'000));
  if (ranks > 1) {
    EXPECT_GT(read[0], 0);
    EXPECT_EQ(read[1] > 0, read[2] > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AlgorithmsShmTest, ::testing::Range(1, 9));

}  // namespace
}  // namespace tidegate
