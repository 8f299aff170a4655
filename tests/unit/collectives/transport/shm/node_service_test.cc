#include "collectives/transport/shm/node_service.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/transport/shm/shm_transport.h"
#include "collectives/transport/shm/wire.h"
#include "common/ipc/unix_socket.h"
#include "common/log.h"
#include "tests/unit/collectives/transport/shm/rank_process.h"

namespace tidegate {
namespace {

namespace fs = std::filesystem;

enum : int { kStarted, kLinked, kDone, kRound };

std::shared_ptr<NodeService> Service() { return NodeService::Get().value(); }

/// Descriptors of this process whose target contains `text`; all of them when it is empty.
std::size_t CountFds(const std::string& text = "") {
  std::size_t count = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone).string().find(text) != std::string::npos) ++count;
  }
  return count;
}

std::size_t CountMappings(const std::string& text) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find(text) != std::string::npos) ++count;
  return count;
}

std::size_t CountThreads(const std::string& name) {
  std::size_t count = 0;
  for (const fs::directory_entry& task : fs::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm"), comm);
    if (comm == name) ++count;
  }
  return count;
}

TEST(NodeServiceTest, IsOneThreadForTheWholeProcess) {
  RankProcess child([] {
    const std::shared_ptr<NodeService> service = Service();
    EXPECT_EQ(Service(), service);
    EXPECT_TRUE(Eventually([] { return CountThreads("tidegate-node") == 1; }));
    EXPECT_EQ(service->address().find("tidegate-" + std::to_string(getpid()) + "-"), 0u);
    NodeService::StopProcess();
    EXPECT_EQ(CountThreads("tidegate-node"), 0u);
    const std::shared_ptr<NodeService> next = Service();
    EXPECT_NE(next->address(), service->address());
    service->doorbell().Ring();  // Still mapped.
  });
  EXPECT_TRUE(child.Succeeded());
}

TEST(NodeServiceTest, BothSidesOfALinkCanRingEachOther) {
  const TemporaryDirectory directory;
  Board board;
  std::vector<std::unique_ptr<RankProcess>> children;
  constexpr int kRounds = 50;
  for (int self = 0; self < 2; ++self) {
    children.push_back(std::make_unique<RankProcess>([&, self] {
      FileBootstrap bootstrap(directory.path());
      for (int round = 0; round < kRounds; ++round) {
        const std::shared_ptr<NodeService> service = Service();
        const auto key = [round](int side) {
          return std::to_string(round) + "-" + std::to_string(side);
        };
        ASSERT_TRUE(bootstrap.Set(key(self), service->address()).ok());
        const std::string other = bootstrap.Get(key(1 - self), kTestLimit).value();
        board[kStarted].fetch_add(1);
        ASSERT_TRUE(board.Await(kStarted, 2 * (round + 1)));
        // Both at once in even rounds, one of them in odd rounds.
        std::shared_ptr<Peer> peer;
        if (round % 2 == 0 || self == 0) {
          peer = service->Link(other);
          EXPECT_EQ(service->Link(other), peer);
          ASSERT_TRUE(Eventually([&] { return peer->doorbell() != nullptr; })) << round;
        }
        board[kLinked].fetch_add(1);
        ASSERT_TRUE(board.Await(kLinked, 2 * (round + 1)));
        // Whoever did not ask has the peer all the same, at once.
        if (!peer) peer = service->Link(other);
        ASSERT_NE(peer->doorbell(), nullptr);
        EXPECT_FALSE(peer->dead());
        if (self == 1) {
          board[kRound] = round + 1;
          peer->doorbell()->Ring();
        } else {
          const TimePoint deadline = TestDeadline();
          while (board[kRound] != round + 1) {
            const std::uint32_t ticket = service->doorbell().Arm();
            if (board[kRound] == round + 1)
              service->doorbell().Disarm();
            else
              service->doorbell().Sleep(ticket, deadline);
            ASSERT_LT(SteadyClock().Now(), deadline);
          }
        }
        board[kDone].fetch_add(1);
        ASSERT_TRUE(board.Await(kDone, 2 * (round + 1)));
        NodeService::StopProcess();
      }
    }));
  }
  EXPECT_TRUE(children[0]->Succeeded());
  EXPECT_TRUE(children[1]->Succeeded());
}

TEST(NodeServiceTest, ALinkToNobodyIsDead) {
  RankProcess child([] {
    const std::shared_ptr<Peer> peer = Service()->Link("tidegate-1-0000000000000000");
    EXPECT_TRUE(Eventually([&] { return peer->dead(); }));
    EXPECT_EQ(peer->doorbell(), nullptr);
  });
  EXPECT_TRUE(child.Succeeded());
}

TEST(NodeServiceTest, StrangersDoNotDisturbIt) {
  RankProcess child([] {
    SetLogLevel(LogLevel::kOff);  // The complaints are meant.
    const std::shared_ptr<NodeService> service = Service();
    const TimePoint deadline = TestDeadline();
    const auto connect = [&] { return ConnectAbstract(service->address(), deadline).value(); };
    std::array<std::byte, 4096> buffer{};
    const auto expect_closed = [&](const UniqueFd& socket) {
      EXPECT_EQ(ReceiveMessage(socket.get(), buffer, deadline).value().size, 0u);
    };
    const auto expect_refused = [&](const UniqueFd& socket) {
      const Message reply = ReceiveMessage(socket.get(), buffer, deadline).value();
      EXPECT_TRUE(reply.fds.empty());
      EXPECT_EQ(ParseNodeReply(std::span(buffer).first(reply.size)).value().outcome,
                Outcome::kRefused);
      expect_closed(socket);
    };

    std::vector<UniqueFd> silent;
    for (int i = 0; i < 100; ++i) silent.push_back(connect());

    const UniqueFd noise = connect();
    ASSERT_TRUE(SendMessage(noise.get(), std::span(buffer).first(10), {}, deadline).ok());
    expect_refused(noise);

    const UniqueFd flood = connect();
    ASSERT_TRUE(SendMessage(flood.get(), buffer, {}, deadline).ok());
    expect_closed(flood);

    const UniqueFd from_the_future = connect();
    NodeRequest request =
        MakeNodeRequest(RequestKind::kLink, service->address(), service->address(), {});
    request.version = kWireVersion + 1;
    ASSERT_TRUE(SendMessage(from_the_future.get(), BytesOf(request), {}, deadline).ok());
    expect_refused(from_the_future);

    const UniqueFd impostor = connect();
    request =
        MakeNodeRequest(RequestKind::kLink, "tidegate-1-0000000000000000", service->address(), {});
    const int standard_input = 0;
    ASSERT_TRUE(
        SendMessage(impostor.get(), BytesOf(request), std::span(&standard_input, 1), deadline)
            .ok());
    expect_refused(impostor);

    const UniqueFd without_doorbell = connect();
    request = MakeNodeRequest(RequestKind::kLink, service->address(), service->address(), {});
    ASSERT_TRUE(SendMessage(without_doorbell.get(), BytesOf(request), {}, deadline).ok());
    expect_refused(without_doorbell);

    const UniqueFd misled = connect();
    request = MakeNodeRequest(RequestKind::kSegment, service->address(), "somebody else", {});
    ASSERT_TRUE(SendMessage(misled.get(), BytesOf(request), {}, deadline).ok());
    expect_refused(misled);

    const UniqueFd guesser = connect();
    request = MakeNodeRequest(RequestKind::kSegment, service->address(), service->address(),
                              RandomKey().value());
    ASSERT_TRUE(SendMessage(guesser.get(), BytesOf(request), {}, deadline).ok());
    expect_refused(guesser);

    // One of the house is served meanwhile.
    const SegmentKey key = RandomKey().value();
    service->Offer(key, standard_input);
    const UniqueFd member = connect();
    request = MakeNodeRequest(RequestKind::kSegment, service->address(), service->address(), key);
    ASSERT_TRUE(SendMessage(member.get(), BytesOf(request), {}, deadline).ok());
    const Message reply = ReceiveMessage(member.get(), buffer, deadline).value();
    EXPECT_EQ(reply.fds.size(), 1u);
    service->Withdraw(key);
  });
  EXPECT_TRUE(child.Succeeded());
}

TEST(NodeServiceTest, HundredGroupsShareOneMappingAndPidfdAPeer) {
  constexpr int kGroups = 100;
  constexpr int kRanks = 3;
  std::vector<std::unique_ptr<TestGroup>> groups;
  for (int i = 0; i < kGroups; ++i)
    groups.push_back(std::make_unique<TestGroup>(kRanks, std::to_string(i)));
  Board board;
  std::vector<std::unique_ptr<RankProcess>> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    children.push_back(std::make_unique<RankProcess>([&, rank] {
      const std::size_t inherited = CountFds("pidfd");
      for (const auto& group : groups) group->Announce(rank);
      std::vector<std::unique_ptr<ShmTransport>> transports;
      for (const auto& group : groups) {
        transports.push_back(group->Attach(rank));
        ASSERT_NE(transports.back(), nullptr);
        ExchangeOnce(*transports.back(), 1);
      }
      EXPECT_EQ(CountMappings("tidegate-doorbell"), static_cast<std::size_t>(kRanks));
      EXPECT_EQ(CountFds("pidfd"), inherited + kRanks - 1);
      EXPECT_EQ(CountMappings("tidegate-segment"), static_cast<std::size_t>(kGroups));
      EXPECT_EQ(CountThreads("tidegate-node"), 1u);
      board[kDone].fetch_add(1);
      ASSERT_TRUE(board.Await(kDone, kRanks));
    }));
  }
  for (const auto& child : children) EXPECT_TRUE(child->Succeeded());
}

TEST(NodeServiceTest, GroupsThatComeAndGoLeaveNothing) {
  constexpr int kCycles = 60;
  constexpr int kSettled = 10;  // Allocators and lazy streams have taken what they keep by then.
  std::vector<std::unique_ptr<TestGroup>> groups;
  for (int i = 0; i < kCycles; ++i) groups.push_back(std::make_unique<TestGroup>(2));
  Board board;
  std::vector<std::unique_ptr<RankProcess>> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(std::make_unique<RankProcess>([&, rank] {
      std::size_t fds = 0;
      for (int cycle = 0; cycle < kCycles; ++cycle) {
        // Every other cycle with a new service.
        if (cycle % 2 == 0) NodeService::StopProcess();
        const TestGroup& group = *groups[static_cast<std::size_t>(cycle)];
        group.Announce(rank);
        {
          const std::unique_ptr<ShmTransport> transport = group.Attach(rank);
          ASSERT_NE(transport, nullptr);
          ExchangeOnce(*transport, 1);
          board[kDone].fetch_add(1);
          ASSERT_TRUE(board.Await(kDone, 2 * (cycle + 1)));
        }
        if (cycle % 2 == 0) continue;
        NodeService::StopProcess();
        EXPECT_EQ(CountMappings("tidegate-"), 0u);
        if (cycle < kSettled) fds = CountFds();
        EXPECT_LE(CountFds(), fds) << "cycle " << cycle;
      }
    }));
  }
  EXPECT_TRUE(children[0]->Succeeded());
  EXPECT_TRUE(children[1]->Succeeded());
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev/shm"))
    EXPECT_EQ(entry.path().string().find("tidegate"), std::string::npos) << entry.path();
}

TEST(NodeServiceTest, AForkedChildNeitherUsesNorDisturbsTheGroup) {
  const TestGroup group(2);
  Board board;
  RankProcess peer([&] {
    SetLogLevel(LogLevel::kOff);
    const std::unique_ptr<ShmTransport> transport = group.Attach(1);
    ASSERT_NE(transport, nullptr);
    ExchangeOnce(*transport, 1);
    ExchangeOnce(*transport, 2);
    EXPECT_FALSE(transport->HasLeft(0));
    board[kLinked] = 1;
    // Rank 0 is killed now, and its child lives on with copies of all its descriptors.
    EXPECT_TRUE(SleepUntil(*transport, [&] { return transport->failed(); }));
    EXPECT_EQ(transport->failure().culprit, 0);
    const FileBootstrap bootstrap(group.path());
    const std::string address = transport->Record(0).address;
    EXPECT_EQ(ConnectAbstract(address, TestDeadline()).status().code(), StatusCode::kPeerLost);
    board[kDone] = 1;
  });
  RankProcess parent([&] {
    std::unique_ptr<ShmTransport> transport = group.Attach(0);
    ASSERT_NE(transport, nullptr);
    ExchangeOnce(*transport, 1);
    RankProcess leaver([&] {
      EXPECT_EQ(NodeService::Get().status().code(), StatusCode::kAborted);
      EXPECT_NE(NodeService::Get().status().message().find("was forked from process"),
                std::string::npos);
      transport.reset();
      NodeService::StopProcess();
    });
    EXPECT_TRUE(leaver.Succeeded());
    ExchangeOnce(*transport, 2);
    // Not a RankProcess: it must outlive this one.
    const pid_t survivor = fork();
    if (survivor == 0) {
      board[kStarted] = 1;
      board.Await(kDone, 1);
      _exit(0);
    }
    board.Await(kDone, 1);  // Killed here.
  });
  ASSERT_TRUE(board.Await(kStarted, 1));
  ASSERT_TRUE(board.Await(kLinked, 1));
  parent.Signal(SIGKILL);
  EXPECT_TRUE(peer.Succeeded());
}

}  // namespace
}  // namespace tidegate
