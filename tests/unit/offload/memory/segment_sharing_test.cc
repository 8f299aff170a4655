#include "offload/memory/segment_sharing.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "common/ipc/unix_socket.h"
#include "tests/unit/common/child_process.h"
#include "tests/unit/offload/memory/arena_support.h"

namespace tidegate::offload {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TimePoint Soon() { return SteadyClock().Now() + seconds(20); }
TimePoint In(Nanoseconds time) { return SteadyClock().Now() + time; }

SegmentHost Listen(const std::shared_ptr<const NodeSegment>& segment) {
  Result<SegmentHost> host = SegmentHost::Listen(segment);
  EXPECT_TRUE(host.ok()) << host.status().message();
  return std::move(host).value();
}

TEST(SegmentSharingTest, RanksOfANodeMapOneSegment) {
  constexpr int kRanks = 3;
  const auto segment = MakeSegment(4 * kMiB, kRanks);
  SegmentHost host = Listen(segment);
  // Each writes its rank into its slice and, last of all, into that of rank 0.
  const auto run = [&](int rank) {
    const auto joined = JoinSegment(host.address(), rank, kRanks, Soon());
    if (!joined.ok()) return 1;
    const auto arena = Arena::Create(joined.value(), rank);
    if (!arena.ok()) return 2;
    std::byte* const block = arena.value()->Allocate(kMiB).value();
    std::memset(block, rank, kMiB);
    const auto of_first = joined.value()->MapSlice(0, Access::kReadWrite);
    if (!of_first.ok()) return 3;
    const auto cell = of_first.value().Write(static_cast<std::size_t>(rank), 1);
    if (!cell.ok()) return 4;
    cell.value()[0] = static_cast<std::byte>(rank);
    for (;;) pause();
  };
  ChildProcess first([&] { return run(1); });
  ChildProcess second([&] { return run(2); });
  const auto arena = MakeArena(segment);
  volatile std::byte* const cells = arena->Allocate(kRanks).value();
  const Status served = host.Serve(Soon());
  ASSERT_TRUE(served.ok()) << served.message();
  const TimePoint deadline = Soon();
  for (int rank = 1; rank < kRanks; ++rank) {
    while (cells[rank] != static_cast<std::byte>(rank))
      ASSERT_LT(SteadyClock().Now(), deadline) << rank;
    const SliceMapping view = std::move(segment->MapSlice(rank, Access::kReadOnly)).value();
    EXPECT_EQ(view.Read(kMiB - 1, 1).value()[0], static_cast<std::byte>(rank));
  }
  // One segment: what the ranks have is what the file has.
  EXPECT_EQ(PageBytesOf(segment->fd()), 2 * kMiB + SmallPageBytes());
}

ino_t InodeOf(int fd) {
  struct stat file{};
  EXPECT_EQ(fstat(fd, &file), 0);
  return file.st_ino;
}

/// Processes that map or have open the arena's file with number `inode`: nothing else can hold it.
int HoldersOf(ino_t inode) {
  int holders = 0;
  std::error_code ignored;  // Processes come and go, and some show nothing.
  for (const auto& process : std::filesystem::directory_iterator("/proc", ignored)) {
    bool holds = false;
    std::ifstream maps(process.path() / "maps");
    for (std::string line; std::getline(maps, line);)
      holds = holds || (line.find("memfd:tidegate-arena") != std::string::npos &&
                        line.find(" " + std::to_string(inode) + " ") != std::string::npos);
    for (const auto& fd : std::filesystem::directory_iterator(process.path() / "fd", ignored)) {
      const std::string name = std::filesystem::read_symlink(fd.path(), ignored).string();
      struct stat file{};
      holds = holds || (name.starts_with("/memfd:tidegate-arena") &&
                        stat(fd.path().c_str(), &file) == 0 && file.st_ino == inode);
    }
    holders += holds ? 1 : 0;
  }
  return holders;
}

TEST(SegmentSharingTest, KillingEveryRankLeavesNothing) {
  struct News {
    pid_t pid;
    ino_t inode;
  };
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const auto live_on = [&](int fd) {
    const News news{.pid = getpid(), .inode = InodeOf(fd)};
    if (write(told[1], &news, sizeof(news)) != sizeof(news)) return 1;
    for (;;) pause();
  };
  // Rank 0 is a child that makes the segment, and has rank 1 as its own.
  ChildProcess rank0([&] {
    const auto segment = MakeSegment(4 * kMiB, 2);
    SegmentHost host = Listen(segment);
    ChildProcess rank1([&] {
      const auto joined = JoinSegment(host.address(), 1, 2, Soon());
      if (!joined.ok()) return 2;
      const auto arena = Arena::Create(joined.value(), 1).value();
      return arena->Allocate(kMiB).ok() ? live_on(joined.value()->fd()) : 3;
    });
    const auto arena = MakeArena(segment);
    if (!host.Serve(Soon()).ok() || !arena->Allocate(kMiB).ok()) return 4;
    return live_on(segment->fd());
  });
  News news[2];
  for (News& each : news) {
    pollfd arrived{.fd = told[0], .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&arrived, 1, 20000), 1);
    ASSERT_EQ(read(told[0], &each, sizeof(each)), static_cast<ssize_t>(sizeof(each)));
  }
  ASSERT_EQ(news[0].inode, news[1].inode);
  ASSERT_GE(HoldersOf(news[0].inode), 2);
  for (const News& each : news) ASSERT_EQ(kill(each.pid, SIGKILL), 0);
  // The kernel takes its time with processes that are dead.
  const TimePoint deadline = Soon();
  while (HoldersOf(news[0].inode) > 0) ASSERT_LT(SteadyClock().Now(), deadline);
  close(told[0]);
  close(told[1]);
}

TEST(SegmentSharingTest, AKilledRankLeavesTheOthersTheirMemory) {
  const auto segment = MakeSegment(4 * kMiB, 2);
  SegmentHost host = Listen(segment);
  ChildProcess peer([&] {
    const auto joined = JoinSegment(host.address(), 1, 2, Soon());
    const auto arena = Arena::Create(joined.value(), 1).value();
    std::memset(arena->Allocate(kMiB).value(), 7, kMiB);
    kill(getpid(), SIGKILL);
    return 0;
  });
  ASSERT_TRUE(host.Serve(Soon()).ok());
  EXPECT_EQ(peer.Wait(), -1);
  const SliceMapping view = std::move(segment->MapSlice(1, Access::kReadOnly)).value();
  EXPECT_EQ(view.Read(kMiB - 1, 1).value()[0], std::byte{7});
}

TEST(SegmentSharingTest, RanksThatDoNotComeAreNamed) {
  SegmentHost host = Listen(MakeSegment(2 * kMiB, 4));
  ChildProcess peer([&] { return JoinSegment(host.address(), 2, 4, Soon()).ok() ? 0 : 1; });
  EXPECT_EQ(host.Serve(In(milliseconds(1))).code(), StatusCode::kTimeout);
  const Status status = host.Serve(In(seconds(1)));
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("local ranks 1, 3 of 4"));
  EXPECT_EQ(peer.Wait(), 0);
}

TEST(SegmentSharingTest, AlienNumbersOfRanksAndTakenRanksAreRefused) {
  SegmentHost host = Listen(MakeSegment(2 * kMiB, 3));
  ChildProcess first([&] { return JoinSegment(host.address(), 1, 3, Soon()).ok() ? 0 : 1; });
  EXPECT_EQ(host.Serve(In(milliseconds(500))).code(), StatusCode::kTimeout);
  ASSERT_EQ(first.Wait(), 0);
  const auto refused = [&](int rank, int ranks, const char* why) {
    return [&host, rank, ranks, why] {
      const Status status = JoinSegment(host.address(), rank, ranks, Soon()).status();
      if (status.code() != StatusCode::kMismatch) return 1;
      return status.message().find(why) == std::string::npos ? 2 : 0;
    };
  };
  ChildProcess again(refused(1, 3, "another process is local rank 1"));
  ChildProcess other(refused(1, 2, "among 3 ranks"));
  ChildProcess beyond(refused(3, 3, "among 3 ranks"));
  EXPECT_EQ(host.Serve(In(seconds(1))).code(), StatusCode::kTimeout);
  EXPECT_EQ(again.Wait(), 0);
  EXPECT_EQ(other.Wait(), 0);
  EXPECT_EQ(beyond.Wait(), 0);
}

TEST(SegmentSharingTest, RankZeroThatHasGoneIsPeerLost) {
  std::string address;
  {
    const SegmentHost host = Listen(MakeSegment(2 * kMiB, 2));
    address = host.address();
  }
  const Status status = JoinSegment(address, 1, 2, kNoDeadline).status();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_THAT(status.message(), HasSubstr("local rank 1"));
}

TEST(SegmentSharingTest, RankZeroThatDiesMeanwhileIsPeerLost) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  ChildProcess rank0([&] {
    const SegmentHost host = Listen(MakeSegment(2 * kMiB, 2));
    if (write(told[1], host.address().data(), host.address().size()) < 0) return 1;
    for (;;) pause();
  });
  char address[128] = {};
  ASSERT_GT(read(told[0], address, sizeof(address) - 1), 0);
  Status status;
  int asked = 0;
  // It is killed while this rank waits for its answer.
  status = JoinSegment(address, 1, 2, Soon(), [&] {
             if (++asked == 1) rank0.Kill();
             return Status();
           }).status();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
  EXPECT_LE(asked, 20);
  close(told[0]);
  close(told[1]);
}

TEST(SegmentSharingTest, WaitsEndAtTheDeadlineAndWhenStopped) {
  SegmentHost host = Listen(MakeSegment(2 * kMiB, 2));
  EXPECT_EQ(JoinSegment(host.address(), 1, 2, In(milliseconds(30))).status().code(),
            StatusCode::kTimeout);
  const StopCheck aborted = [] { return Status(StatusCode::kAborted, "the group was aborted"); };
  const Status join = JoinSegment(host.address(), 1, 2, kNoDeadline, aborted).status();
  EXPECT_EQ(join.code(), StatusCode::kAborted);
  EXPECT_THAT(join.message(), HasSubstr("the group was aborted"));
  const Status serve = host.Serve(kNoDeadline, aborted);
  EXPECT_EQ(serve.code(), StatusCode::kAborted);
  EXPECT_THAT(serve.message(), HasSubstr("local ranks 1 of 2"));
}

TEST(SegmentSharingTest, StrangersDoNotDisturb) {
  SegmentHost host = Listen(MakeSegment(2 * kMiB, 2));
  const UniqueFd silent = std::move(ConnectAbstract(host.address(), Soon()).value());
  const UniqueFd alien = std::move(ConnectAbstract(host.address(), Soon()).value());
  const std::string greeting = "GET / HTTP/1.1";
  ASSERT_TRUE(SendMessage(alien.get(), std::as_bytes(std::span(greeting.data(), greeting.size())),
                          {}, Soon())
                  .ok());
  ChildProcess peer([&] { return JoinSegment(host.address(), 1, 2, Soon()).ok() ? 0 : 1; });
  EXPECT_TRUE(host.Serve(Soon()).ok());
  EXPECT_EQ(peer.Wait(), 0);
}

TEST(SegmentSharingTest, AFileThatIsNoSegmentIsAMismatch) {
  Result<UniqueFd> fd(UniqueFd(memfd_create("test", MFD_ALLOW_SEALING)));
  ASSERT_EQ(ftruncate(fd.value().get(), static_cast<off_t>(4 * kMiB)), 0);
  EXPECT_EQ(NodeSegment::Adopt(UniqueFd(dup(fd.value().get())), 2, 2 * kMiB, {}).status().code(),
            StatusCode::kMismatch);  // Its end could be cut off under a mapping.
  ASSERT_EQ(fcntl(fd.value().get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(NodeSegment::Adopt(UniqueFd(dup(fd.value().get())), 2, 2 * kMiB, {}).ok());
  EXPECT_EQ(NodeSegment::Adopt(UniqueFd(dup(fd.value().get())), 3, 2 * kMiB, {}).status().code(),
            StatusCode::kMismatch);
}

}  // namespace
}  // namespace tidegate::offload
