// Regions of a segment between processes: who has how much, what peers see, and what remains of it.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/collectives/transport/shm/rank_process.h"

namespace tidegate {
namespace {

constexpr std::size_t kRegion = std::size_t{8} << 20;

std::unique_ptr<ShmTransport> AttachWith(const TestGroup& group, int rank, std::size_t region) {
  FileBootstrap bootstrap(group.path());
  ShmTransport::Options options = group.Options(rank, bootstrap);
  options.region_bytes = region;
  Result<std::unique_ptr<ShmTransport>> transport = ShmTransport::Attach(options);
  EXPECT_TRUE(transport.ok()) << transport.status().message();
  return transport.ok() ? std::move(transport).value() : nullptr;
}

TEST(RegionTest, PeersReadTensorsWhereTheyLie) {
  const TestGroup group(3);
  Board board;
  std::vector<std::unique_ptr<RankProcess>> processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.push_back(std::make_unique<RankProcess>([&, rank] {
      // What the first rank has holds for all.
      if (rank > 0) {
        ASSERT_TRUE(board.Await(0, 1));
      }
      const auto transport = AttachWith(group, rank, rank == 0 ? kRegion : 4096);
      ASSERT_NE(transport, nullptr);
      EXPECT_EQ(transport->region_bytes(), kRegion);
      const auto mine = transport->Allocate(1 << 20);
      ASSERT_TRUE(mine.ok()) << mine.status().message();
      EXPECT_EQ(mine.value().get(), transport->RegionOf(rank));
      std::memset(mine.value().get(), rank + 1, 1 << 20);
      board[0].fetch_add(1);
      ASSERT_TRUE(board.Await(0, 3));
      for (int peer = 0; peer < 3; ++peer)
        EXPECT_EQ(transport->RegionOf(peer)[(1 << 20) - 1], static_cast<std::byte>(peer + 1));
      board[1].fetch_add(1);
      ASSERT_TRUE(board.Await(1, 3));
    }));
  }
  for (const auto& process : processes) EXPECT_TRUE(process->Succeeded());
}

TEST(RegionTest, TensorsOutliveTheirGroup) {
  RankProcess process([] {
    const TestGroup group(2);
    std::shared_ptr<std::byte> tensor;
    {
      const auto transport = AttachWith(group, 0, kRegion);
      ASSERT_NE(transport, nullptr);
      tensor = transport->Allocate(100'000).value();
    }
    NodeService::StopProcess();
    std::memset(tensor.get(), 3, 100'000);
    EXPECT_EQ(tensor.get()[99'999], std::byte{3});
  });
  EXPECT_TRUE(process.Succeeded());
}

TEST(RegionTest, LimitsOnFilesLeaveAGroupWithoutRegions) {
  RankProcess process([] {
    const rlimit limit{std::size_t{16} << 20, std::size_t{16} << 20};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const TestGroup group(2);
    const auto transport = AttachWith(group, 0, std::size_t{1} << 30);
    ASSERT_NE(transport, nullptr);
    EXPECT_EQ(transport->region_bytes(), 0u);
    const auto none = transport->Allocate(1);
    ASSERT_TRUE(none.ok());
    EXPECT_EQ(none.value(), nullptr);
  });
  EXPECT_TRUE(process.Succeeded());
}

}  // namespace
}  // namespace tidegate
