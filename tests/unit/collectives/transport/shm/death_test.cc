#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "collectives/transport/shm/node_service.h"
#include "collectives/transport/shm/shm_transport.h"
#include "common/log.h"
#include "common/machine/machine.h"
#include "tests/unit/collectives/transport/shm/rank_process.h"

namespace tidegate {
namespace {

enum : int { kReady, kKilledAt, kVictimPid, kSlowest, kNoticed, kGo };

std::int64_t NowNanoseconds() { return SteadyClock().Now().time_since_epoch().count(); }

/// Waits on the doorbell for the group's failure; records how long after the kill it came.
void ExpectDeathNoticed(ShmTransport& transport, Board& board, int victim,
                        const std::string& when) {
  ASSERT_TRUE(SleepUntil(transport, [&] { return transport.failed(); }));
  const std::int64_t delay = NowNanoseconds() - board[kKilledAt];
  EXPECT_LT(delay, 2'000'000'000);
  for (std::int64_t seen = board[kSlowest];
       seen < delay && !board[kSlowest].compare_exchange_weak(seen, delay);) {
  }
  const GroupFailure failure = transport.failure();
  EXPECT_EQ(failure.code, StatusCode::kPeerLost);
  EXPECT_EQ(failure.culprit, victim);
  EXPECT_NE(failure.reporter, victim);
  EXPECT_EQ(failure.text,
            "rank " + std::to_string(victim) + " (pid " + std::to_string(board[kVictimPid]) +
                ", host " + HostName() + ") died " + when + " of group 0 [" +
                std::to_string(transport.ranks()) +
                " ranks]; see that process's own output, restart the job from its last checkpoint");
  // Every survivor saw it before anybody leaves and takes the reason with him.
  board[kNoticed].fetch_add(1);
  EXPECT_TRUE(board.Await(kNoticed, transport.ranks() - 1));
}

/// Forks a group in which rank `victim` runs `last_act` and is then killed with -9.
void KillOne(
    int ranks, int victim, const std::string& when,
    const std::function<void(const TestGroup&, int rank, std::unique_ptr<ShmTransport>&)>& before) {
  const TestGroup group(ranks);
  Board board;
  std::vector<std::unique_ptr<RankProcess>> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(std::make_unique<RankProcess>([&, rank] {
      SetLogLevel(LogLevel::kOff);  // The deaths are meant.
      group.Announce(rank);
      board[kReady].fetch_add(1);
      ASSERT_TRUE(board.Await(kReady, ranks));
      std::unique_ptr<ShmTransport> transport;
      before(group, rank, transport);
      board[kReady].fetch_add(1);
      if (rank == victim) {
        board.Await(kGo, 1);  // Killed here; never comes true.
        return;
      }
      ASSERT_NE(transport, nullptr);
      ExpectDeathNoticed(*transport, board, victim, when);
    }));
  }
  ASSERT_TRUE(board.Await(kReady, 2 * ranks));
  RankProcess& dying = *children[static_cast<std::size_t>(victim)];
  board[kVictimPid] = dying.pid();
  board[kKilledAt] = NowNanoseconds();
  dying.Signal(SIGKILL);
  for (int rank = 0; rank < ranks; ++rank)
    if (rank != victim) {
      EXPECT_TRUE(children[static_cast<std::size_t>(rank)]->Succeeded()) << "rank " << rank;
    }
  std::cout << ranks << " ranks, rank " << victim << " killed: the slowest survivor noticed after "
            << static_cast<double>(board[kSlowest]) / 1e6 << " ms\n";
}

void AttachAndExchange(const TestGroup& group, int rank, std::unique_ptr<ShmTransport>& transport) {
  transport = group.Attach(rank);
  ASSERT_NE(transport, nullptr);
  ExchangeOnce(*transport, 1);
  ExchangeOnce(*transport, 2);
}

TEST(DeathTest, OfAnyRankIsNoticedByAllOthers) {
  for (const int victim : {0, 1, 3})
    KillOne(4, victim, "in all_gather(float32, 1024 elements) seq 2", AttachAndExchange);
}

TEST(DeathTest, OfTwoRanksTheLastIsTold) {
  KillOne(2, 0, "in all_gather(float32, 1024 elements) seq 2", AttachAndExchange);
}

TEST(DeathTest, OfARankThatNeverAttachedIsNoticed) {
  KillOne(3, 2, "before its first operation",
          [](const TestGroup& group, int rank, std::unique_ptr<ShmTransport>& transport) {
            if (rank != 2) transport = group.Attach(rank);
          });
}

TEST(DeathTest, OfARankThatAttachedOnlyIsNoticed) {
  KillOne(3, 1, "before its first collective",
          [](const TestGroup& group, int rank, std::unique_ptr<ShmTransport>& transport) {
            transport = group.Attach(rank);
          });
}

TEST(DeathTest, OfARankThatOnlySentIsNotCalledIdle) {
  KillOne(2, 1, "before its first collective",
          [](const TestGroup& group, int rank, std::unique_ptr<ShmTransport>& transport) {
            transport = group.Attach(rank);
            ASSERT_NE(transport, nullptr);
            ASSERT_TRUE(transport->CommitPair(1 - rank, /*sends=*/true).ok());
            std::atomic<std::uint64_t>& written = transport->Pair(1, 0).pieces_written;
            if (rank == 1) {
              written.store(1, std::memory_order_release);
              transport->Wake();
            } else {
              ASSERT_TRUE(SleepUntil(*transport, [&] { return written.load() == 1; }));
            }
          });
}

TEST(DeathTest, NamesTheLatestOperationOfBothLanes) {
  KillOne(2, 1, "in reduce_scatter(SUM, float64, 7 elements) seq 9",
          [](const TestGroup& group, int rank, std::unique_ptr<ShmTransport>& transport) {
            transport = group.Attach(rank);
            ASSERT_NE(transport, nullptr);
            ExchangeOnce(*transport, 1);
            if (rank == 1)
              transport->Arrive(1, 1,
                                {.sequence = 9,
                                 .elements = 7,
                                 .collective = Collective::kReduceScatter,
                                 .dtype = DataType::kFloat64,
                                 .reduce_op = ReduceOp::kSum},
                                {});
          });
}

TEST(DeathTest, OfARankThatCameAfterTheOthersAttachedAndNeverDidIsNoticed) {
  const TestGroup group(3);
  Board board;
  const auto stay = [&](int rank) {
    SetLogLevel(LogLevel::kOff);  // The death is meant.
    const std::unique_ptr<ShmTransport> transport = group.Attach(rank);
    ASSERT_NE(transport, nullptr);
    board[kReady].fetch_add(1);
    ExpectDeathNoticed(*transport, board, 1, "before its first operation");
  };
  RankProcess first([&] { stay(0); });
  RankProcess third([&] { stay(2); });
  ASSERT_TRUE(board.Await(kReady, 2));
  RankProcess late([&] {
    group.Announce(1);
    board[kReady].fetch_add(1);
    board.Await(kGo, 1);  // Killed here; never comes true.
  });
  ASSERT_TRUE(board.Await(kReady, 3));
  board[kVictimPid] = late.pid();
  board[kKilledAt] = NowNanoseconds();
  late.Signal(SIGKILL);
  EXPECT_TRUE(first.Succeeded());
  EXPECT_TRUE(third.Succeeded());
}

TEST(DeathTest, OfTheCreatorBeforeItPublishedEndsAttach) {
  const TestGroup group(2);
  Board board;
  RankProcess creator([&] {
    group.Announce(0);
    FileBootstrap bootstrap(group.path());
    ASSERT_EQ(bootstrap.Increment("creator").value(), 1);
    board[kReady] = 1;
    board.Await(kGo, 1);
  });
  RankProcess joiner([&] {
    ASSERT_TRUE(board.Await(kReady, 1));
    board[kReady] = 2;
    const std::int64_t begin = NowNanoseconds();
    const Result<std::unique_ptr<ShmTransport>> transport = group.TryAttach(1);
    EXPECT_LT(NowNanoseconds() - begin, 2'000'000'000);
    ASSERT_FALSE(transport.ok());
    EXPECT_EQ(transport.status().code(), StatusCode::kPeerLost);
    EXPECT_EQ(transport.status().message(),
              "rank 0 (pid " + std::to_string(creator.pid()) + ", host " + HostName() +
                  ") died before its first operation of group 0 [2 ranks]; see that process's own "
                  "output, restart the job from its last checkpoint");
  });
  ASSERT_TRUE(board.Await(kReady, 2));
  creator.Signal(SIGKILL);
  EXPECT_TRUE(joiner.Succeeded());
}

TEST(DeathTest, OfTheCreatorAfterItPublishedEndsAttach) {
  const TestGroup group(2);
  Board board;
  RankProcess creator([&] {
    const std::unique_ptr<ShmTransport> transport = group.Attach(0);
    board[kReady] = 1;
    board.Await(kGo, 1);
  });
  ASSERT_TRUE(board.Await(kReady, 1));
  creator.Signal(SIGKILL);
  EXPECT_FALSE(creator.Succeeded());
  RankProcess joiner([&] {
    const Result<std::unique_ptr<ShmTransport>> transport = group.TryAttach(1);
    ASSERT_FALSE(transport.ok());
    EXPECT_EQ(transport.status().code(), StatusCode::kPeerLost);
    EXPECT_EQ(transport.status().message(),
              "rank 0 (pid " + std::to_string(creator.pid()) + ", host " + HostName() +
                  ") died after it made the shared memory of group 0 [2 ranks]; see that process's "
                  "own output, restart the job from its last checkpoint");
  });
  EXPECT_TRUE(joiner.Succeeded());
}

TEST(DeathTest, OfARankThatLeftFailsNobody) {
  const TestGroup group(3);
  Board board;
  std::vector<std::unique_ptr<RankProcess>> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(std::make_unique<RankProcess>([&, rank] {
      std::unique_ptr<ShmTransport> transport = group.Attach(rank);
      ASSERT_NE(transport, nullptr);
      ExchangeOnce(*transport, 1);
      if (rank == 2) {
        ASSERT_TRUE(board.Await(kReady, 2));
        transport.reset();
        board.Await(kGo, 1);  // Killed here.
        return;
      }
      const DeathCounter counter;
      board[kReady].fetch_add(1);
      ASSERT_TRUE(SleepUntil(*transport, [&] { return transport->HasLeft(2); }));
      board[kReady].fetch_add(1);
      ASSERT_TRUE(Eventually([&] { return counter.deaths() > 0; }));
      EXPECT_FALSE(transport->failed());
      // Neither leaves, and so dies, before the other has looked.
      board[kNoticed].fetch_add(1);
      EXPECT_TRUE(board.Await(kNoticed, 2));
    }));
  }
  ASSERT_TRUE(board.Await(kReady, 4));
  children[2]->Signal(SIGKILL);
  EXPECT_TRUE(children[0]->Succeeded());
  EXPECT_TRUE(children[1]->Succeeded());
}

}  // namespace
}  // namespace tidegate
