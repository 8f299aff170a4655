#include "collectives/transport/memory_transport.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "collectives/transport/loopback/loopback.h"

namespace tidegate {
namespace {

constexpr std::size_t kStage = 4096;

Fingerprint Call(std::uint64_t sequence) {
  return {.sequence = sequence,
          .elements = 10 * sequence,
          .layout = 100 * sequence,
          .factor = 0.5 * static_cast<double>(sequence),
          .collective = Collective::kAllReduce,
          .dtype = DataType::kFloat32,
          .reduce_op = ReduceOp::kPremulSum};
}

SegmentHeader& HeaderOf(MemoryTransport& transport) {
  const SegmentLayout layout(transport.ranks(), transport.stage_bytes());
  return *reinterpret_cast<SegmentHeader*>(transport.StageOf(0, 0) - layout.StageAt(0, 0));
}

TEST(MemoryTransportTest, AnArrivalIsSeenWithItsFingerprint) {
  LoopbackGroup group(3, kStage);
  EXPECT_FALSE(group.transport(1).HasArrived(0, 2, 1));
  group.transport(2).Arrive(0, 1, Call(11), {});
  EXPECT_TRUE(group.transport(1).HasArrived(0, 2, 1));
  EXPECT_FALSE(group.transport(1).HasArrived(0, 2, 2));
  EXPECT_FALSE(group.transport(1).HasArrived(1, 2, 1)) << "the other lane";
  EXPECT_FALSE(group.transport(1).HasArrived(0, 0, 1)) << "another rank";
  const Fingerprint seen = group.transport(1).ArrivalOf(0, 2, 1);
  EXPECT_TRUE(Matches(seen, Call(11)));
  EXPECT_EQ(seen.factor, 5.5);
}

TEST(MemoryTransportTest, AnArrivalStaysReadableUntilTheNextButOne) {
  LoopbackGroup group(2, kStage);
  group.transport(0).Arrive(1, 1, Call(1), {});
  group.transport(0).Arrive(1, 2, Call(2), {});
  EXPECT_EQ(group.transport(1).ArrivalOf(1, 0, 1).sequence, 1u);
  EXPECT_EQ(group.transport(1).ArrivalOf(1, 0, 2).sequence, 2u);
}

TEST(MemoryTransportTest, SplitsTravelWithTheArrival) {
  LoopbackGroup group(2, kStage);
  const std::array<std::uint64_t, 4> first = {1, 2, 3, 4};
  const std::array<std::uint64_t, 4> second = {5, 6, 7, 8};
  group.transport(0).Arrive(0, 1, Call(1), first);
  group.transport(0).Arrive(0, 2, Call(2), second);
  for (int position = 0; position < 4; ++position) {
    const auto index = static_cast<std::size_t>(position);
    EXPECT_EQ(group.transport(1).SplitOf(0, 0, 1, position), first[index]);
    EXPECT_EQ(group.transport(1).SplitOf(0, 0, 2, position), second[index]);
  }
}

TEST(MemoryTransportTest, SplitsForAnotherNumberOfRanksAreABug) {
  LoopbackGroup group(2, kStage);
  const std::array<std::uint64_t, 3> splits = {};
  EXPECT_THROW(group.transport(0).Arrive(0, 1, Call(1), splits), InvariantError);
}

TEST(MemoryTransportTest, AWaitIsSeenAsPublishedLast) {
  LoopbackGroup group(2, kStage);
  EXPECT_EQ(group.transport(1).WaitOf(0, 0).index, 0u) << "none yet";
  group.transport(0).PublishWait(0, {.index = 3, .word = 7, .mark = 5, .peer = 1});
  group.transport(0).PublishWait(0, {.index = 4, .word = 9, .mark = 6, .peer = kAllPeers});
  const PendingWait seen = group.transport(1).WaitOf(0, 0);
  EXPECT_EQ(seen.index, 4u);
  EXPECT_EQ(seen.word, 9u);
  EXPECT_EQ(seen.mark, 6);
  EXPECT_EQ(seen.peer, kAllPeers);
  EXPECT_EQ(group.transport(1).WaitOf(1, 0).index, 0u) << "the other lane";
}

TEST(MemoryTransportTest, AWaitForAWordThatDoesNotExistIsNone) {
  LoopbackGroup group(2, kStage);
  for (const Mark mark : {-1, kDoneMark + 1}) {
    group.transport(0).PublishWait(0, {.index = 3, .word = 7, .mark = mark, .peer = 1});
    EXPECT_EQ(group.transport(1).WaitOf(0, 0).index, 0u) << mark;
  }
}

TEST(MemoryTransportTest, TheLatestArrivalIsForDiagnosis) {
  LoopbackGroup group(2, kStage);
  Fingerprint latest;
  EXPECT_FALSE(group.transport(1).LatestArrival(0, 0, &latest));
  group.transport(0).Arrive(0, 1, Call(4), {});
  group.transport(0).Arrive(0, 2, Call(6), {});
  ASSERT_TRUE(group.transport(1).LatestArrival(0, 0, &latest));
  EXPECT_TRUE(Matches(latest, Call(6)));
}

TEST(MemoryTransportTest, MarksLanesAndRanksHaveWordsOfTheirOwn) {
  LoopbackGroup group(2, kStage);
  const Mark marks[] = {kReady, kConsumed, kResult, kMaxMarks - 2, kMaxMarks - 1};
  std::uint64_t word = 10;
  for (int rank = 0; rank < 2; ++rank)
    for (int lane = 0; lane < kLanes; ++lane)
      for (const Mark mark : marks) group.transport(rank).Signal(lane, mark, ++word);
  word = 10;
  for (int rank = 0; rank < 2; ++rank)
    for (int lane = 0; lane < kLanes; ++lane)
      for (const Mark mark : marks) {
        ++word;
        EXPECT_TRUE(group.transport(1 - rank).HasReached(lane, rank, mark, word));
        EXPECT_FALSE(group.transport(1 - rank).HasReached(lane, rank, mark, word + 1));
      }
}

TEST(MemoryTransportTest, WhatWasStagedBeforeASignalIsSeenAfterIt) {
  constexpr std::uint64_t kRounds = 2000;
  LoopbackGroup group(2, kStage);
  const auto run = [&](int self) {
    MemoryTransport& transport = group.transport(self);
    auto* const mine = reinterpret_cast<std::uint64_t*>(transport.StageOf(0, self));
    const auto* const other =
        reinterpret_cast<const std::uint64_t*>(transport.StageOf(0, 1 - self));
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      mine[round % 2] = round;
      transport.Signal(0, kReady, round);
      while (!transport.HasReached(0, 1 - self, kReady, round)) std::this_thread::yield();
      ASSERT_EQ(other[round % 2], round);
      transport.Signal(0, kConsumed, round);
      while (!transport.HasReached(0, 1 - self, kConsumed, round)) std::this_thread::yield();
    }
  };
  const std::jthread first(run, 0);
  run(1);
}

TEST(MemoryTransportTest, ARankIsAbsentThenAttachedThenLeft) {
  const std::uint64_t probe = 1;
  LoopbackGroup group(2, kStage);
  MemoryTransport& watcher = group.transport(0);
  EXPECT_TRUE(watcher.IsAttached(1));
  EXPECT_FALSE(watcher.HasLeft(1));
  group.transport(1).PublishRecord({.pid = 4711, .host = "a", .address = "address"}, probe);
  EXPECT_EQ(watcher.DescribePeer(1), "rank 1 (pid 4711, host a)");
  EXPECT_STREQ(watcher.Record(1).address, "address");
  group.transport(1).PublishLeft();
  EXPECT_TRUE(watcher.HasLeft(1));
  EXPECT_TRUE(watcher.IsAttached(1));
  EXPECT_FALSE(watcher.HasLeft(0));
}

TEST(MemoryTransportTest, PeersReadTheMemoryOfARankOnceAllHaveSaidSo) {
  LoopbackGroup group(3, kStage);
  EXPECT_TRUE(group.transport(0).PeersReadMemory());
  const int here = 5;
  int copy = 0;
  const Status read =
      group.transport(1).ReadMemory(0, reinterpret_cast<std::uintptr_t>(&here),
                                    reinterpret_cast<std::byte*>(&copy), sizeof(here));
  EXPECT_TRUE(read.ok());
  EXPECT_EQ(copy, here);
}

/// Tells what is otherwise asked by transports alone.
class Records : public MemoryTransport {
 public:
  Records(std::byte* base, const SegmentLayout& layout, int rank)
      : MemoryTransport(base, layout, rank) {}
  using MemoryTransport::UsableCpusTogether;
  Status CommitStage(int, std::size_t, std::size_t) override { return Status(); }
  Status CommitPair(int, bool) override { return Status(); }
  void Wake() override {}
};

TEST(MemoryTransportTest, RanksHaveTheProcessorsOfAllWithinTheLargestQuota) {
  const auto together = [](const std::vector<RankDescription>& ranks) {
    const SegmentLayout layout(static_cast<int>(ranks.size()), kStage);
    void* const memory = mmap(nullptr, layout.total_bytes(), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* const base = static_cast<std::byte*>(memory);
    const std::uint64_t probe = 0;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      Records(base, layout, static_cast<int>(rank)).PublishRecord(ranks[rank], probe);
    const int cpus = Records(base, layout, 0).UsableCpusTogether();
    munmap(memory, layout.total_bytes());
    return cpus;
  };
  const auto on = [](std::uint64_t first, std::uint64_t last, int quota) {
    RankDescription rank{.host = "a"};
    rank.cpus.front() = first;
    rank.cpus.back() = last;
    rank.cpu_quota = quota;
    return rank;
  };
  EXPECT_EQ(together({on(1, 0, 0), on(2, 0, 0)}), 2);
  EXPECT_EQ(together({on(1, 0, 0), on(1, 0, 0)}), 1);
  EXPECT_EQ(together({on(3, 0, 0), on(6, 8, 0)}), 4);
  EXPECT_EQ(together({on(15, 0, 3), on(15, 0, 2)}), 3);
  EXPECT_EQ(together({on(3, 0, 9), on(3, 0, 9)}), 2);
  EXPECT_EQ(together({on(15, 0, 1), on(15, 0, 0)}), 4);
}

TEST(MemoryTransportTest, LongNamesAreCutNotOverrun) {
  const std::uint64_t probe = 1;
  LoopbackGroup group(2, kStage);
  group.transport(1).PublishRecord(
      {.pid = 1, .host = std::string(100, 'h'), .address = std::string(100, 'a')}, probe);
  EXPECT_EQ(group.transport(0).DescribePeer(1),
            "rank 1 (pid 1, host " + std::string(63, 'h') + ")");
}

TEST(MemoryTransportTest, TheFirstFailureIsTheOneThatAllRead) {
  LoopbackGroup group(3, kStage);
  EXPECT_FALSE(group.transport(0).failed());
  group.transport(2).Fail({StatusCode::kTimeout, 2, 1, "rank 1 was missing"});
  group.transport(1).Fail({StatusCode::kAborted, 1, 1, "too late"});
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(group.transport(rank).failed());
    const GroupFailure failure = group.transport(rank).failure();
    EXPECT_EQ(failure.code, StatusCode::kTimeout);
    EXPECT_EQ(failure.reporter, 2);
    EXPECT_EQ(failure.culprit, 1);
    EXPECT_EQ(failure.text, "rank 1 was missing");
  }
}

TEST(MemoryTransportTest, OfFailuresAtOnceOneIsReadWhole) {
  constexpr int kRanks = 4;
  for (int round = 0; round < 50; ++round) {
    LoopbackGroup group(kRanks, kStage);
    std::atomic<int> ready{0};
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back([&, rank] {
        ready.fetch_add(1);
        while (ready.load() < kRanks) std::this_thread::yield();
        group.transport(rank).Fail(
            {StatusCode::kAborted, rank, rank, std::string(900, 'a' + rank)});
        while (!group.transport(rank).failed()) std::this_thread::yield();
        const GroupFailure failure = group.transport(rank).failure();
        EXPECT_EQ(failure.reporter, failure.culprit);
        EXPECT_EQ(failure.text, std::string(900, static_cast<char>('a' + failure.reporter)));
      });
  }
}

TEST(MemoryTransportTest, WhoeverReportsADeathTakesOverAHalfWrittenFailure) {
  LoopbackGroup group(3, kStage);
  // Rank 1 was killed while it wrote.
  HeaderOf(group.transport(0)).failure_state = SegmentHeader::kFirstClaim + 1;
  group.transport(2).Fail({StatusCode::kTimeout, 2, 1, "says nothing of a death"});
  EXPECT_FALSE(group.transport(0).failed());
  group.transport(2).Fail({StatusCode::kPeerLost, 2, 0, "another rank's death"});
  EXPECT_FALSE(group.transport(0).failed());
  group.transport(2).Fail({StatusCode::kPeerLost, 2, 1, "rank 1 died"});
  ASSERT_TRUE(group.transport(0).failed());
  EXPECT_EQ(group.transport(0).failure().text, "rank 1 died");
}

TEST(MemoryTransportTest, AFailureOfNoKnownKindIsOneAllTheSame) {
  for (const int code : {0, -1, static_cast<int>(StatusCode::kInternal) + 1}) {
    LoopbackGroup group(2, kStage);
    group.transport(0).Fail({static_cast<StatusCode>(code), 0, 0, "why"});
    EXPECT_TRUE(group.transport(1).failed());
    EXPECT_EQ(group.transport(1).failure().code, StatusCode::kInternal) << code;
    EXPECT_EQ(group.transport(1).failure().text, "why");
  }
}

TEST(MemoryTransportTest, AFailureTextWithoutEndIsCutAtItsField) {
  LoopbackGroup group(2, kStage);
  SegmentHeader& header = HeaderOf(group.transport(0));
  std::memset(header.failure_text, 'x', sizeof(header.failure_text));
  EXPECT_EQ(group.transport(1).failure().text.size(), sizeof(header.failure_text));
}

/// Opens what only transports use.
class Checker : public MemoryTransport {
 public:
  static Status Check(const std::byte* base, std::size_t size, const SegmentLayout& layout) {
    return CheckHeader(base, size, layout);
  }
  static void Format(std::byte* base, const SegmentLayout& layout) { Initialise(base, layout); }
};

TEST(MemoryTransportTest, AHeaderMustBeOfThisVersionAndGroup) {
  const SegmentLayout layout(2, kStage);
  alignas(64) std::array<std::byte, sizeof(SegmentHeader)> memory{};
  const auto check = [&](const SegmentLayout& expected) {
    return Checker::Check(memory.data(), expected.total_bytes(), expected);
  };
  EXPECT_EQ(check(layout).code(), StatusCode::kMismatch) << "zeros are no header";
  Checker::Format(memory.data(), layout);
  EXPECT_TRUE(check(layout).ok());
  EXPECT_EQ(check(SegmentLayout(3, kStage)).code(), StatusCode::kMismatch);
  EXPECT_EQ(check(SegmentLayout(2, 2 * kStage)).code(), StatusCode::kMismatch);
  EXPECT_NE(Checker::Check(memory.data(), 1, layout).message().find("has 1 bytes"),
            std::string::npos);
  reinterpret_cast<SegmentHeader*>(memory.data())->version = kSegmentVersion + 1;
  const std::string found = "version " + std::to_string(kSegmentVersion + 1);
  EXPECT_NE(check(layout).message().find(found + ", this build speaks"), std::string::npos);
}

}  // namespace
}  // namespace tidegate
