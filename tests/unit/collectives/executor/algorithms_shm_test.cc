// Every algorithm between processes, over real shared memory: the results bit for bit, and the
// bytes that ranks took from and put into each other's stages.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/executor/execution.h"
#include "collectives/prepared_call.h"
#include "tests/unit/collectives/support/collective_case.h"
#include "tests/unit/collectives/support/placements.h"
#include "tests/unit/collectives/transport/shm/rank_process.h"

namespace tidegate {
namespace {

using testing::AllCases;
using testing::CaseMemory;
using testing::CollectiveCase;
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

/// What all ranks together take from their peers: each flow brings each block to each rank once.
std::int64_t BytesOf(const CollectiveCase& one) {
  std::int64_t elements = 0;
  for (const int count : one.counts) elements += count;
  const std::int64_t bytes = elements * static_cast<std::int64_t>(sizeof(std::int32_t));
  const int rounds = one.collective == Collective::kAllReduce ? 2 : 1;
  return rounds * bytes * (one.ranks - 1);
}

bool IsFlow(const NamedAlgorithm& algorithm) {
  return algorithm.name != "one_shot" && (algorithm.collective == Collective::kAllGather ||
                                          algorithm.collective == Collective::kReduceScatter ||
                                          algorithm.collective == Collective::kAllReduce);
}

class AlgorithmsShmTest : public ::testing::TestWithParam<int> {};

TEST_P(AlgorithmsShmTest, EveryAlgorithmIsRightAndMovesTheBytesThatItMust) {
  const int ranks = GetParam();
  const char* all = std::getenv("TIDEGATE_TEST_ALL");
  // More ranks than cores take their time: every algorithm meets every size on some placement.
  const std::size_t every = (all != nullptr && *all != '0') || ranks < 4 ? 1 : 9;
  const TestGroup group(ranks);
  Board moved;
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
      std::size_t number = 0;
      std::int64_t expected = 0;
      std::int64_t other_bytes = 0;  // Of what is no flow.
      for (const NamedPlacement& placed : PlacementsOf(ranks)) {
        for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
          if (!algorithm.serves(placed.placement)) continue;
          for (const CollectiveCase& one : AllCases(ranks, 700, 3)) {
            if (one.collective != algorithm.collective || one.root > 2) continue;
            if (algorithm.even && !IsEven(one)) continue;
            if (number++ % every != 0) continue;
            CaseMemory memory(one);
            // Every other case of every rank with its inputs in the segment, each rank its own.
            std::shared_ptr<std::byte> region;
            if ((sequence + static_cast<std::uint64_t>(rank) * (sequence / 2)) % 2 == 0) {
              region = transport->Allocate(kRegionBytes / 2).value();
              memory.Place(rank, region.get());
            }
            const CollectiveRequest request = memory.RequestFor(rank);
            const Schedule schedule = algorithm.build({.rank = rank,
                                                       .ranks = ranks,
                                                       .root = std::max(one.root, 0),
                                                       .placement = &placed.placement});
            const std::uint64_t before = execution.bytes_from_peers() + execution.bytes_to_peers();
            ++sequence;
            // Of the rest, two of three with inputs that others read in this process.
            ASSERT_NO_FATAL_FAILURE(
                RunToEnd(*transport, execution, request, schedule, sequence, sequence % 3 != 0));
            ASSERT_EQ(memory.ErrorOf(rank), "") << algorithm.name << " on " << placed.name;
            memory.Scribble(rank);
            const std::uint64_t after = execution.bytes_from_peers() + execution.bytes_to_peers();
            if (IsFlow(algorithm)) {
              expected += BytesOf(one);
            } else {
              other_bytes += static_cast<std::int64_t>(after - before);
            }
          }
        }
      }
      moved[0] +=
          static_cast<std::int64_t>(execution.bytes_from_peers() + execution.bytes_to_peers()) -
          other_bytes;
      if (rank == 0) moved[1] = expected;
      moved[2] += static_cast<std::int64_t>(execution.resident_bytes());
      moved[3] += static_cast<std::int64_t>(execution.single_copy_bytes());
      moved[4] += transport->PeersReadMemory() ? 1 : 0;
    }));
  }
  for (const std::unique_ptr<RankProcess>& process : processes)
    ASSERT_TRUE(process->Succeeded(/*limit_ms=*/500'000));
  EXPECT_EQ(moved[0], moved[1]);
  if (ranks > 1) {
    EXPECT_GT(moved[2], 0);
    EXPECT_EQ(moved[3] > 0, moved[4] > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AlgorithmsShmTest, ::testing::Range(1, 9));

}  // namespace
}  // namespace tidegate
