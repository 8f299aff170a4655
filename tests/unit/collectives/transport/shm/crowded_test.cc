// Whether ranks have a processor each follows from what all of them together may use.

#include <gtest/gtest.h>
#include <sched.h>

#include <memory>
#include <vector>

#include "collectives/transport/shm/shm_transport.h"
#include "tests/unit/collectives/transport/shm/rank_process.h"

namespace tidegate {
namespace {

enum : int { kCrowded };

/// The processors of this process.
std::vector<int> Cpus() {
  std::vector<int> cpus;
  cpu_set_t mask;
  EXPECT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  return cpus;
}

/// How many of the ranks say that they are crowded, where each is bound to the processor named.
std::int64_t CrowdedRanks(const std::vector<int>& cpu_of) {
  const int ranks = static_cast<int>(cpu_of.size());
  const TestGroup group(ranks);
  Board board;
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (int rank = 0; rank < ranks; ++rank)
    processes.push_back(std::make_unique<RankProcess>([&, rank] {
      cpu_set_t mask;
      CPU_ZERO(&mask);
      CPU_SET(cpu_of[static_cast<std::size_t>(rank)], &mask);
      ASSERT_EQ(sched_setaffinity(0, sizeof(mask), &mask), 0);
      const std::unique_ptr<ShmTransport> transport = group.Attach(rank);
      ExchangeOnce(*transport, 1);
      board[kCrowded].fetch_add(transport->crowded() ? 1 : 0);
    }));
  for (const std::unique_ptr<RankProcess>& process : processes) EXPECT_TRUE(process->Succeeded());
  return board[kCrowded].load();
}

TEST(CrowdedTest, RanksBoundToAProcessorEachAreNot) {
  const std::vector<int> cpus = Cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "there is one processor";
  EXPECT_EQ(CrowdedRanks({cpus[0], cpus[1]}), 0);
}

TEST(CrowdedTest, RanksThatShareProcessorsAllAre) {
  const std::vector<int> cpus = Cpus();
  EXPECT_EQ(CrowdedRanks({cpus.front(), cpus.front()}), 2);
  EXPECT_EQ(CrowdedRanks({cpus.front(), cpus.back(), cpus.front(), cpus.back()}), 4);
}

}  // namespace
}  // namespace tidegate
