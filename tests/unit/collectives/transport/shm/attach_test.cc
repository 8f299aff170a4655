#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "collectives/transport/shm/rendezvous.h"
#include "collectives/transport/shm/shm_transport.h"
#include "common/ipc/memfd.h"
#include "tests/unit/collectives/transport/shm/rank_process.h"

namespace tidegate {
namespace {

/// Ranks attach one after the other in `order`, then all exchange data `rounds` times.
void AttachInOrder(const std::vector<int>& order, std::uint64_t rounds) {
  const int ranks = static_cast<int>(order.size());
  const TestGroup group(ranks);
  Board board;
  std::vector<std::unique_ptr<RankProcess>> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(std::make_unique<RankProcess>([&, rank] {
      group.Announce(rank);
      const auto turn = std::find(order.begin(), order.end(), rank) - order.begin();
      ASSERT_TRUE(board.Await(0, turn));
      const std::unique_ptr<ShmTransport> transport = group.Attach(rank);
      board[0].fetch_add(1);
      ASSERT_NE(transport, nullptr);
      for (std::uint64_t index = 1; index <= rounds; ++index) ExchangeOnce(*transport, index);
      EXPECT_FALSE(transport->failed());
    }));
  }
  for (int rank = 0; rank < ranks; ++rank)
    EXPECT_TRUE(children[static_cast<std::size_t>(rank)]->Succeeded()) << "rank " << rank;
}

TEST(AttachTest, RanksShareMemoryWhateverTheOrderOfArrival) {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    std::vector<int> order(static_cast<std::size_t>(ranks));
    std::iota(order.begin(), order.end(), 0);
    do {
      SCOPED_TRACE(testing::PrintToString(order));
      AttachInOrder(order, 20);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(AttachTest, FiveRanksInSeveralOrders) {
  for (const std::vector<int>& order :
       {std::vector<int>{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}})
    AttachInOrder(order, 20);
}

TEST(AttachTest, EightRanks) { AttachInOrder({5, 0, 7, 2, 4, 6, 1, 3}, 10); }

}  // namespace
}  // namespace tidegate
