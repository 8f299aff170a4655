#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "collectives/transport/segment_layout.h"
#include "collectives/transport/shm/node_service.h"
#include "collectives/transport/shm/process.h"
#include "collectives/transport/shm/rendezvous.h"
#include "collectives/transport/shm/shm_transport.h"
#include "collectives/transport/shm/wire.h"
#include "common/ipc/memfd.h"
#include "common/unique_fd.h"
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

enum : int { kStarted, kGo, kDone };

TEST(AttachTest, EveryProcessSeesStageAndWordsOfBothLanes) {
  const TestGroup group(2);
  std::vector<std::unique_ptr<RankProcess>> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(std::make_unique<RankProcess>([&, rank] {
      const std::unique_ptr<ShmTransport> transport = group.Attach(rank);
      ASSERT_NE(transport, nullptr);
      const auto mark = [](int lane, int owner, std::size_t i) {
        return static_cast<std::byte>(37 * lane + 11 * owner + static_cast<int>(i % 97));
      };
      for (int lane = 0; lane < kLanes; ++lane) {
        ASSERT_TRUE(transport->CommitStage(lane, 0, kTestStageBytes).ok());
        for (std::size_t i = 0; i < kTestStageBytes; ++i)
          transport->StageOf(lane, rank)[i] = mark(lane, rank, i);
        transport->Signal(lane, kResult, 3);
        transport->Wake();
      }
      for (int lane = 0; lane < kLanes; ++lane) {
        ASSERT_TRUE(SleepUntil(*transport,
                               [&] { return transport->HasReached(lane, 1 - rank, kResult, 3); }));
        EXPECT_FALSE(transport->HasReached(lane, 1 - rank, kReady, 1));
        for (std::size_t i = 0; i < kTestStageBytes; ++i)
          ASSERT_EQ(transport->StageOf(lane, 1 - rank)[i], mark(lane, 1 - rank, i)) << i;
        transport->Signal(lane, kConsumed, 3);
        transport->Wake();
      }
      for (int lane = 0; lane < kLanes; ++lane)
        ASSERT_TRUE(SleepUntil(
            *transport, [&] { return transport->HasReached(lane, 1 - rank, kConsumed, 3); }));
    }));
  }
  EXPECT_TRUE(children[0]->Succeeded());
  EXPECT_TRUE(children[1]->Succeeded());
}

TEST(AttachTest, PairChannelsAreCommittedInBothDirections) {
  const TestGroup group(2);
  RankProcess creator([&] {
    const std::unique_ptr<ShmTransport> transport = group.Attach(0);
    ASSERT_NE(transport, nullptr);
    for (int repeat = 0; repeat < 2; ++repeat)
      ASSERT_TRUE(transport->CommitPair(1, /*sends=*/true).ok());
    transport->Pair(0, 1).pieces[PairChannel::kPieces - 1][0] = std::byte{7};
    transport->Pair(1, 0).posts[PairChannel::kPosts - 1].bytes = 8;
  });
  EXPECT_TRUE(creator.Succeeded());
}

/// What Attach of rank 1 of 2 answers when rank 0 does `creator` first and stays until then.
Status AttachAfter(const std::function<void(const TestGroup&)>& creator,
                   const std::function<void(ShmTransport::Options&)>& change = nullptr) {
  const TestGroup group(2);
  const TemporaryDirectory results;
  Board board;
  RankProcess first([&] {
    creator(group);
    board[kStarted] = 1;
    EXPECT_TRUE(board.Await(kDone, 1));
  });
  RankProcess second([&] {
    EXPECT_TRUE(board.Await(kStarted, 1));
    FileBootstrap bootstrap(group.path());
    ShmTransport::Options options = group.Options(1, bootstrap);
    if (change) change(options);
    const Status status = ShmTransport::Attach(options).status();
    FileBootstrap(results.path())
        .Set("status", std::to_string(static_cast<int>(status.code())) + status.message())
        .ok();
    board[kDone] = 1;
  });
  EXPECT_TRUE(second.Succeeded());
  EXPECT_TRUE(first.Succeeded());
  const std::string text =
      FileBootstrap(results.path()).Get("status", std::chrono::seconds(1)).value();
  const auto code = static_cast<StatusCode>(text.at(0) - '0');
  return code == StatusCode::kOk ? Status() : Status(code, text.substr(1));
}

/// Offers a file of `bytes` with `header` as the segment of the group.
void OfferSegment(const TestGroup& group, std::size_t bytes, const SegmentHeader* header,
                  const std::function<void(SegmentDescription&)>& change = nullptr) {
  NodeService& service = *NodeService::Get().value();
  // Lives as long as the process, like the service.
  static const UniqueFd file = CreateMemfd("tidegate-test", bytes).value();
  if (header != nullptr) {
    ASSERT_EQ(pwrite(file.get(), header, sizeof(*header), 0),
              static_cast<ssize_t>(sizeof(*header)));
  }
  SegmentDescription description{.creator = ThisProcess().value(),
                                 .rank = 0,
                                 .address = service.address(),
                                 .key = RandomKey().value(),
                                 .ranks = 2,
                                 .stage_bytes = kTestStageBytes};
  service.Offer(description.key, file.get());
  if (change) change(description);
  FileBootstrap bootstrap(group.path());
  ASSERT_EQ(bootstrap.Increment("creator").value(), 1);
  ASSERT_TRUE(bootstrap.Set("segment", Encode(description)).ok());
}

void ExpectStatus(const Status& status, StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
}

const std::size_t kGoodBytes = SegmentLayout(2, kTestStageBytes).total_bytes();

TEST(AttachTest, RefusesASegmentOfAnotherSize) {
  for (const std::size_t bytes : {std::size_t{1}, kGoodBytes - 4096, kGoodBytes + 4096})
    ExpectStatus(AttachAfter([&](const TestGroup& group) { OfferSegment(group, bytes, nullptr); }),
                 StatusCode::kMismatch,
                 "has " + std::to_string(bytes) + " bytes, expected " + std::to_string(kGoodBytes));
}

TEST(AttachTest, RefusesASegmentWithoutOurHeader) {
  ExpectStatus(
      AttachAfter([&](const TestGroup& group) { OfferSegment(group, kGoodBytes, nullptr); }),
      StatusCode::kMismatch, "layout version 0, this build speaks");
}

TEST(AttachTest, RefusesASegmentForOtherRanks) {
  SegmentHeader header{};
  header.magic = kSegmentMagic;
  header.version = kSegmentVersion;
  header.ranks = 3;
  header.stage_bytes = kTestStageBytes;
  ExpectStatus(
      AttachAfter([&](const TestGroup& group) { OfferSegment(group, kGoodBytes, &header); }),
      StatusCode::kMismatch, "is for 3 ranks");
}

TEST(AttachTest, RanksMustAgreeOnTheStage) {
  ExpectStatus(AttachAfter([](const TestGroup& group) { group.Attach(0); },
                           [](ShmTransport::Options& options) { options.stage_bytes = 4096; }),
               StatusCode::kMismatch,
               "rank 0 made group 0 [2 ranks] with 2 ranks and TIDEGATE_STAGE_BYTES=65536, rank 1 "
               "expects 2 and 4096");
}

TEST(AttachTest, AllGoByWhatTheFirstRankSays) {
  const TestGroup group(3);
  Board board;
  std::vector<std::unique_ptr<RankProcess>> children;
  const std::vector<int> order = {1, 0, 2};
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(std::make_unique<RankProcess>([&, rank] {
      group.Announce(rank);
      const auto turn = std::find(order.begin(), order.end(), rank) - order.begin();
      ASSERT_TRUE(board.Await(0, turn));
      FileBootstrap bootstrap(group.path());
      ShmTransport::Options options = group.Options(rank, bootstrap);
      options.agreement = [&]() -> Result<std::string> {
        board[1].fetch_add(1);
        return "as rank " + std::to_string(rank) + " says\n";
      };
      const Result<std::unique_ptr<ShmTransport>> transport = ShmTransport::Attach(options);
      board[0].fetch_add(1);
      ASSERT_TRUE(transport.ok()) << transport.status().message();
      EXPECT_EQ(transport.value()->agreement(), "as rank 1 says\n");
      ASSERT_TRUE(board.Await(0, 3));
    }));
  }
  for (const auto& child : children) EXPECT_TRUE(child->Succeeded());
  EXPECT_EQ(board[1].load(), 1) << "ranks that were asked";
}

TEST(AttachTest, WhyThereIsNoAgreementIsToldToAll) {
  ExpectStatus(
      AttachAfter(
          [](const TestGroup& group) {
            FileBootstrap bootstrap(group.path());
            ShmTransport::Options options = group.Options(0, bootstrap);
            options.agreement = [] {
              return Result<std::string>(Status(StatusCode::kInvalidArgument, "a bad file"));
            };
            ExpectStatus(ShmTransport::Attach(options).status(), StatusCode::kInvalidArgument,
                         "a bad file");
          },
          [](ShmTransport::Options& options) {
            options.agreement = [] { return Result<std::string>(std::string()); };
          }),
      StatusCode::kInvalidArgument, "a bad file");
}

TEST(AttachTest, RanksOfDifferentlyNamedNodesAreRefused) {
  ExpectStatus(AttachAfter([](const TestGroup& group) { group.Attach(0); },
                           [](ShmTransport::Options& options) { options.node_id = "b"; }),
               StatusCode::kUnsupported, "TIDEGATE_NODE_ID");
}

TEST(AttachTest, RefusesAnotherMachine) {
  ExpectStatus(AttachAfter([](const TestGroup& group) {
                 OfferSegment(group, kGoodBytes, nullptr, [](SegmentDescription& description) {
                   description.creator.boot_id = "another";
                   description.creator.host = "b";
                 });
               }),
               StatusCode::kUnsupported, "rank 0 (host b) is on another machine than rank 1");
}

TEST(AttachTest, ReportsAKeyThatNobodyOffersAsLeft) {
  ExpectStatus(AttachAfter([](const TestGroup& group) {
                 OfferSegment(group, kGoodBytes, nullptr,
                              [](SegmentDescription& description) { description.key = {}; });
               }),
               StatusCode::kPeerLost, "left the group before rank 1 came to its first operation");
}

TEST(AttachTest, ReportsACreatorThatLeft) {
  ExpectStatus(AttachAfter([](const TestGroup& group) {
                 group.Attach(0).reset();
                 NodeService::StopProcess();
               }),
               StatusCode::kPeerLost, "left the group before rank 1 came to its first operation");
}

TEST(AttachTest, ReportsWhyTheGroupFailedWhenTheCreatorHasLeft) {
  ExpectStatus(AttachAfter([](const TestGroup& group) {
                 std::unique_ptr<ShmTransport> transport = group.Attach(0);
                 transport->Fail({StatusCode::kTimeout, 0, 5, "rank 5 never came"});
                 FileBootstrap bootstrap(group.path());
                 transport->LeaveLastWord(bootstrap);
                 transport.reset();
                 NodeService::StopProcess();
               }),
               StatusCode::kPeerLost, "rank 5 never came");
}

TEST(AttachTest, PassesTheFailureOfTheCreatorOn) {
  // Rank 0 may not make files as large as the segment.
  ExpectStatus(AttachAfter([](const TestGroup& group) {
                 const rlimit limit{.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
                 ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
                 ExpectStatus(group.TryAttach(0).status(), StatusCode::kResourceExhausted,
                              "of shared memory");
               }),
               StatusCode::kResourceExhausted,
               "could not make the group's shared memory: cannot allocate");
}

TEST(AttachTest, EndsAtItsDeadlineWhenTheCreatorIsStopped) {
  const TestGroup group(2);
  Board board;
  RankProcess creator([&] {
    const std::unique_ptr<ShmTransport> transport = group.Attach(0);
    board[kStarted] = 1;
    EXPECT_TRUE(board.Await(kDone, 1));
  });
  ASSERT_TRUE(board.Await(kStarted, 1));
  ASSERT_TRUE(creator.Stop());
  RankProcess joiner([&] {
    FileBootstrap bootstrap(group.path());
    ShmTransport::Options options = group.Options(1, bootstrap);
    options.deadline = SteadyClock().Now() + std::chrono::milliseconds(300);
    ExpectStatus(ShmTransport::Attach(options).status(), StatusCode::kTimeout,
                 "waiting for rank 0 (pid " + std::to_string(creator.pid()));
    EXPECT_LT(SteadyClock().Now(), options.deadline + std::chrono::seconds(1));
  });
  EXPECT_TRUE(joiner.Succeeded());
  creator.Signal(SIGCONT);
  board[kDone] = 1;
  EXPECT_TRUE(creator.Succeeded());
}

TEST(AttachTest, GivesUpWhenInterrupted) {
  RankProcess joiner([] {
    const TestGroup group(2);
    FileBootstrap bootstrap(group.path());
    ASSERT_EQ(bootstrap.Increment("creator").value(), 1);  // By a rank that says no more.
    ShmTransport::Options options = group.Options(1, bootstrap);
    static int asked;
    options.interrupted = [] { return ++asked == 3; };
    ExpectStatus(ShmTransport::Attach(options).status(), StatusCode::kInterrupted,
                 "while attaching to group 0 [2 ranks]");
  });
  EXPECT_TRUE(joiner.Succeeded());
}

TEST(AttachTest, SleepersAreWokenWhileTheRanksStillLink) {
  // No net: a wake-up that is lost costs the test its limit. Each round links anew.
  constexpr int kRounds = 30;
  constexpr std::uint64_t kTurns = 20;
  std::vector<std::unique_ptr<TestGroup>> groups;
  for (int round = 0; round < kRounds; ++round) groups.push_back(std::make_unique<TestGroup>(2));
  Board board;
  std::vector<std::unique_ptr<RankProcess>> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(std::make_unique<RankProcess>([&, rank] {
      for (int round = 0; round < kRounds; ++round) {
        std::unique_ptr<ShmTransport> transport =
            groups[static_cast<std::size_t>(round)]->Attach(rank);
        ASSERT_NE(transport, nullptr);
        for (std::uint64_t turn = 1; turn <= kTurns; ++turn) {
          transport->Signal(0, kReady, turn);
          transport->Wake();
          const TimePoint deadline = TestDeadline();
          const auto ready = [&] { return transport->HasReached(0, 1 - rank, kReady, turn); };
          while (!ready()) {
            const std::uint32_t ticket = transport->doorbell().Arm();
            if (ready())
              transport->doorbell().Disarm();
            else
              transport->doorbell().Sleep(ticket, deadline);
            ASSERT_LT(SteadyClock().Now(), deadline) << "round " << round << " turn " << turn;
          }
        }
        board[kDone].fetch_add(1);
        ASSERT_TRUE(board.Await(kDone, 2 * (round + 1)));
        transport.reset();
        NodeService::StopProcess();
      }
    }));
  }
  EXPECT_TRUE(children[0]->Succeeded());
  EXPECT_TRUE(children[1]->Succeeded());
}

TEST(AttachTest, SleepsLongOnlyOnceEveryRankIsLinked) {
  const TestGroup group(2);
  Board board;
  RankProcess first([&] {
    const std::unique_ptr<ShmTransport> transport = group.Attach(0);
    ASSERT_NE(transport, nullptr);
    EXPECT_LE(transport->max_sleep(), std::chrono::milliseconds(10));
    board[kStarted] = 1;
    EXPECT_TRUE(
        Eventually([&] { return transport->max_sleep() == std::chrono::milliseconds(100); }));
    board[kDone] = 1;
  });
  ASSERT_TRUE(board.Await(kStarted, 1));
  RankProcess second([&] {
    const std::unique_ptr<ShmTransport> transport = group.Attach(1);
    EXPECT_TRUE(board.Await(kDone, 1));
  });
  EXPECT_TRUE(first.Succeeded());
  EXPECT_TRUE(second.Succeeded());
}

}  // namespace
}  // namespace tidegate
