// Ranks as threads of one process: not how groups are used, but what ThreadSanitizer can see.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "collectives/transport/shm/node_service.h"
#include "collectives/transport/shm/shm_transport.h"
#include "tests/unit/collectives/transport/shm/rank_process.h"

namespace tidegate {
namespace {

TEST(ThreadsTest, RanksOfOneProcessExchange) {
  constexpr int kRanks = 4;
  {
    const TestGroup group(kRanks);
    std::vector<std::jthread> ranks;
    std::atomic<int> done{0};
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        group.Announce(rank);
        const std::unique_ptr<ShmTransport> transport = group.Attach(rank);
        ASSERT_NE(transport, nullptr);
        for (std::uint64_t index = 1; index <= 10; ++index) ExchangeOnce(*transport, index);
        // The offer of the creator goes with it.
        done.fetch_add(1);
        EXPECT_TRUE(Eventually([&] { return done.load() == kRanks; }));
      });
    }
  }
  NodeService::StopProcess();
}

TEST(ThreadsTest, GroupsComeAndGoWhileDeathsAreReported) {
  RankProcess victims[] = {RankProcess([] { pause(); }), RankProcess([] { pause(); }),
                           RankProcess([] { pause(); })};
  {
    const std::shared_ptr<NodeService> service = NodeService::Get().value();
    std::atomic<bool> stop{false};
    std::jthread groups([&] {
      while (!stop.load()) {
        const TestGroup group(1);
        EXPECT_NE(group.Attach(0), nullptr);
      }
    });
    for (RankProcess& victim : victims) {
      const std::shared_ptr<Process> process = service->Watch(victim.pid(), 0);
      EXPECT_FALSE(process->ended());
      victim.Signal(SIGKILL);
      EXPECT_TRUE(Eventually([&] { return process->ended(); }));
    }
    stop = true;
  }
  NodeService::StopProcess();
}

}  // namespace
}  // namespace tidegate
