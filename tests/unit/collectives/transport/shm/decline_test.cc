#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "collectives/transport/shm/shm_transport.h"
#include "common/clock.h"
#include "common/machine/machine.h"
#include "common/status.h"
#include "tests/unit/collectives/transport/shm/rank_process.h"

namespace tidegate {
namespace {

enum : int { kAttached, kDeclined, kEnded, kChecked, kGo };

/// Far below the limit of any wait, far above what a slow machine needs.
constexpr std::int64_t kSoon = 2'000'000'000;

std::int64_t Now() { return SteadyClock().Now().time_since_epoch().count(); }

std::string NameHere(int rank, pid_t pid) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) + ", host " + HostName() +
         ")";
}

Status NoMemory() { return Status(StatusCode::kResourceExhausted, "no memory left"); }

std::string NoMemoryText(int rank, pid_t pid) {
  return NameHere(rank, pid) + " cannot join group 0 [3 ranks]: no memory left";
}

TEST(DeclineTest, AfterOthersAttachedIsSeenAndTheEndOfTheProcessIsNoDeath) {
  const TestGroup group(3);
  Board board;
  RankProcess leaver([&] {
    group.Announce(2);
    board[kAttached].fetch_add(1);
    ASSERT_TRUE(board.Await(kAttached, 3));
    group.Decline(2, Status());
    board[kDeclined] = Now();
    ASSERT_TRUE(board.Await(kGo, 2));
  });
  const auto stay = [&](int rank) {
    ASSERT_TRUE(board.Await(kAttached, 1));
    const std::unique_ptr<ShmTransport> transport = group.Attach(rank);
    ASSERT_NE(transport, nullptr);
    const DeathCounter counter;
    board[kAttached].fetch_add(1);
    ASSERT_TRUE(SleepUntil(*transport, [&] { return transport->HasLeft(2); }));
    EXPECT_EQ(transport->DescribePeer(2), NameHere(2, leaver.pid()));
    ASSERT_TRUE(board.Await(kDeclined, 1));
    EXPECT_LT(Now() - board[kDeclined], kSoon);
    EXPECT_TRUE(
        Eventually([&] { return transport->max_sleep() == std::chrono::milliseconds(100); }));
    board[kGo].fetch_add(1);
    ASSERT_TRUE(Eventually([&] { return counter.deaths() > 0; }));
    EXPECT_FALSE(transport->failed()) << transport->failure().text;
    board[kChecked].fetch_add(1);
    EXPECT_TRUE(board.Await(kChecked, 2));
  };
  RankProcess first([&] { stay(0); });
  RankProcess second([&] { stay(1); });
  EXPECT_TRUE(leaver.Succeeded());
  EXPECT_TRUE(first.Succeeded());
  EXPECT_TRUE(second.Succeeded());
}

TEST(DeclineTest, OfARankThatCameAfterOthersAttachedIsSeen) {
  for (const bool in_peace : {true, false}) {
    const TestGroup group(3);
    Board board;
    RankProcess stays([&] {
      const std::unique_ptr<ShmTransport> transport = group.Attach(0);
      ASSERT_NE(transport, nullptr);
      board[kAttached] = 1;
      ASSERT_TRUE(board.Await(kGo, 1));
      EXPECT_FALSE(transport->IsAttached(2)) << "It is there, no more.";
      board[kChecked] = 1;
      if (in_peace) {
        ASSERT_TRUE(SleepUntil(*transport, [&] { return transport->HasLeft(2); }));
        EXPECT_FALSE(transport->failed()) << transport->failure().text;
      } else {
        ASSERT_TRUE(SleepUntil(*transport, [&] { return transport->failed(); }));
        EXPECT_EQ(transport->failure().culprit, 2);
      }
    });
    RankProcess leaver([&] {
      ASSERT_TRUE(board.Await(kAttached, 1));
      group.Announce(2);
      board[kGo] = 1;
      ASSERT_TRUE(board.Await(kChecked, 1));
      group.Decline(2, in_peace ? Status() : NoMemory());
    });
    EXPECT_TRUE(leaver.Succeeded());
    EXPECT_TRUE(stays.Succeeded());
  }
}

TEST(DeclineTest, BeforeAnybodyAttachedIsSeenByAllWhoCome) {
  const TestGroup group(3);
  Board board;
  RankProcess leaver([&] {
    group.Announce(2);
    group.Decline(2, Status());
  });
  ASSERT_TRUE(leaver.Succeeded());  // Its process has ended, too.
  const auto come = [&](int rank) {
    const std::unique_ptr<ShmTransport> transport = group.Attach(rank);
    ASSERT_NE(transport, nullptr);
    EXPECT_TRUE(transport->HasLeft(2));
    EXPECT_EQ(transport->DescribePeer(2), NameHere(2, leaver.pid()));
    EXPECT_FALSE(transport->failed());
    board[kChecked].fetch_add(1);
    EXPECT_TRUE(board.Await(kChecked, 2));
  };
  RankProcess first([&] { come(0); });
  RankProcess second([&] { come(1); });
  EXPECT_TRUE(first.Succeeded());
  EXPECT_TRUE(second.Succeeded());
}

TEST(DeclineTest, OfARankThatWasSeenBeforeDoesNotEndAWait) {
  // Rank 1 waits for a segment that rank 0 is slow to make; rank 2 leaves, and ends, meanwhile.
  const TestGroup group(3);
  Board board;
  RankProcess leaver([&] {
    group.Announce(2);
    board[kAttached].fetch_add(1);
    ASSERT_TRUE(board.Await(kGo, 1));
    group.Decline(2, Status());
  });
  RankProcess creator([&] {
    FileBootstrap bootstrap(group.path());
    ASSERT_EQ(bootstrap.Increment("creator").value(), 1);
    board[kAttached].fetch_add(1);
    ASSERT_TRUE(board.Await(kEnded, 1));
  });
  RankProcess joiner([&] {
    ASSERT_TRUE(board.Await(kAttached, 2));
    FileBootstrap bootstrap(group.path());
    ShmTransport::Options options = group.Options(1, bootstrap);
    static Board* shared;
    static int polls, polls_after_end;
    shared = &board;
    // Asked after each look for ended processes: rank 2 has been seen, goes, and is still gone.
    options.interrupted = [] {
      if (++polls == 2) (*shared)[kGo] = 1;
      return (*shared)[kEnded] == 1 && ++polls_after_end == 3;
    };
    const Status status = ShmTransport::Attach(options).status();
    EXPECT_EQ(status.code(), StatusCode::kInterrupted) << status.message();
  });
  EXPECT_TRUE(leaver.Succeeded());
  board[kEnded] = 1;
  EXPECT_TRUE(joiner.Succeeded());
}

TEST(DeclineTest, WithAReasonFailsThoseWhoAreThereAndThoseWhoCome) {
  const TestGroup group(3);
  Board board;
  RankProcess failing([&] {
    group.Announce(2);
    ASSERT_TRUE(board.Await(kAttached, 1));
    group.Decline(2, NoMemory());
    board[kDeclined] = Now();
    ASSERT_TRUE(board.Await(kChecked, 2));
  });
  const auto expect_failed = [&](const ShmTransport& transport) {
    const GroupFailure failure = transport.failure();
    EXPECT_EQ(failure.code, StatusCode::kResourceExhausted);
    EXPECT_EQ(failure.culprit, 2);
    EXPECT_EQ(failure.text, NoMemoryText(2, failing.pid()));
    board[kChecked].fetch_add(1);
    EXPECT_TRUE(board.Await(kChecked, 2));
  };
  RankProcess attached([&] {
    const std::unique_ptr<ShmTransport> transport = group.Attach(0);
    ASSERT_NE(transport, nullptr);
    board[kAttached] = 1;
    ASSERT_TRUE(SleepUntil(*transport, [&] { return transport->failed(); }));
    ASSERT_TRUE(board.Await(kDeclined, 1));
    EXPECT_LT(Now() - board[kDeclined], kSoon);
    expect_failed(*transport);
  });
  RankProcess later([&] {
    ASSERT_TRUE(board.Await(kDeclined, 1));
    const std::unique_ptr<ShmTransport> transport = group.Attach(1);
    ASSERT_NE(transport, nullptr);
    ASSERT_TRUE(transport->failed());
    expect_failed(*transport);
  });
  EXPECT_TRUE(attached.Succeeded());
  EXPECT_TRUE(later.Succeeded());
  EXPECT_TRUE(failing.Succeeded());
}

TEST(DeclineTest, WithAReasonBeforeAnybodyAttachedFailsTheFirstToCome) {
  const TestGroup group(3);
  RankProcess failing([&] { group.Decline(2, NoMemory()); });
  ASSERT_TRUE(failing.Succeeded());
  RankProcess creator([&] {
    const std::unique_ptr<ShmTransport> transport = group.Attach(0);
    ASSERT_NE(transport, nullptr);
    ASSERT_TRUE(transport->failed());
    EXPECT_EQ(transport->failure().code, StatusCode::kResourceExhausted);
    EXPECT_EQ(transport->failure().text, NoMemoryText(2, failing.pid()));
  });
  EXPECT_TRUE(creator.Succeeded());
}

TEST(DeclineTest, WithAReasonEndsTheWaitForASegmentThatNobodyMakes) {
  const TestGroup group(3);
  RankProcess failing([&] {
    FileBootstrap bootstrap(group.path());
    ASSERT_EQ(bootstrap.Increment("creator").value(), 1);
    group.Decline(2, NoMemory());
  });
  ASSERT_TRUE(failing.Succeeded());
  RankProcess joiner([&] {
    const std::int64_t begin = Now();
    const Status status = group.TryAttach(0).status();
    EXPECT_LT(Now() - begin, kSoon);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(status.message(), NoMemoryText(2, failing.pid()));
  });
  EXPECT_TRUE(joiner.Succeeded());
}

TEST(DeclineTest, ARankWithAnotherStageFailsTheOthers) {
  const TestGroup group(2);
  Board board;
  RankProcess creator([&] {
    const std::unique_ptr<ShmTransport> transport = group.Attach(0);
    ASSERT_NE(transport, nullptr);
    board[kAttached] = 1;
    ASSERT_TRUE(SleepUntil(*transport, [&] { return transport->failed(); }));
    EXPECT_EQ(transport->failure().code, StatusCode::kMismatch);
    EXPECT_NE(transport->failure().text.find(" cannot join group 0 [2 ranks]: rank 0 made group 0 "
                                             "[2 ranks] with 2 ranks and TIDEGATE_STAGE_BYTES="),
              std::string::npos)
        << transport->failure().text;
  });
  RankProcess joiner([&] {
    ASSERT_TRUE(board.Await(kAttached, 1));
    FileBootstrap bootstrap(group.path());
    ShmTransport::Options options = group.Options(1, bootstrap);
    options.stage_bytes = 4096;
    const Status status = ShmTransport::Attach(options).status();
    ASSERT_EQ(status.code(), StatusCode::kMismatch);
    ShmTransport::Decline(options, status);
  });
  EXPECT_TRUE(joiner.Succeeded());
  EXPECT_TRUE(creator.Succeeded());
}

TEST(DeclineTest, OfARankThatTheGroupHasNotGotFailsTheOthers) {
  const TestGroup group(2);
  Board board;
  RankProcess creator([&] {
    const std::unique_ptr<ShmTransport> transport = group.Attach(0);
    ASSERT_NE(transport, nullptr);
    board[kAttached] = 1;
    ASSERT_TRUE(SleepUntil(*transport, [&] { return transport->failed(); }));
    EXPECT_EQ(transport->failure().culprit, 9);
  });
  RankProcess joiner([&] {
    ASSERT_TRUE(board.Await(kAttached, 1));
    FileBootstrap bootstrap(group.path());
    ShmTransport::Options options = group.Options(9, bootstrap);
    options.ranks = 10;
    ShmTransport::Decline(options, Status());  // Marks nothing: there is no such record.
    const Status status = ShmTransport::Attach(options).status();
    ASSERT_EQ(status.code(), StatusCode::kMismatch) << status.message();
    ShmTransport::Decline(options, status);
  });
  EXPECT_TRUE(joiner.Succeeded());
  EXPECT_TRUE(creator.Succeeded());
}

TEST(DeclineTest, IsShortWhenTheCreatorIsStopped) {
  const TestGroup group(2);
  Board board;
  RankProcess creator([&] {
    const std::unique_ptr<ShmTransport> transport = group.Attach(0);
    board[kAttached] = 1;
    EXPECT_TRUE(board.Await(kGo, 1));
  });
  ASSERT_TRUE(board.Await(kAttached, 1));
  ASSERT_TRUE(creator.Stop());
  RankProcess leaver([&] {
    const std::int64_t begin = Now();
    group.Decline(1, Status());
    EXPECT_LT(Now() - begin, kSoon);
  });
  EXPECT_TRUE(leaver.Succeeded());
  board[kGo] = 1;
  creator.Signal(SIGCONT);
  EXPECT_TRUE(creator.Succeeded());
}

TEST(DeclineTest, ACancelledAttachEndsAtOnce) {
  RankProcess joiner([] {
    const TestGroup group(2);
    FileBootstrap bootstrap(group.path());
    std::atomic<bool> cancelled{true};
    ShmTransport::Options options = group.Options(1, bootstrap);
    options.cancelled = &cancelled;
    EXPECT_EQ(ShmTransport::Attach(options).status().code(), StatusCode::kAborted);
    // It did not become the rank that makes the segment.
    EXPECT_EQ(bootstrap.Increment("creator").value(), 1);

    static std::atomic<bool>* flag;
    flag = &cancelled;
    cancelled = false;
    options.interrupted = [] {
      flag->store(true);
      return false;
    };
    const std::int64_t begin = Now();
    const Status status = ShmTransport::Attach(options).status();
    EXPECT_LT(Now() - begin, kSoon);
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_EQ(status.message(), "the group was aborted while it was being joined");
  });
  EXPECT_TRUE(joiner.Succeeded());
}

}  // namespace
}  // namespace tidegate
