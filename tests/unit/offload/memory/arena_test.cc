#include "offload/memory/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "common/machine/machine.h"
#include "offload/memory/torch_rounding.h"
#include "tests/unit/common/child_process.h"
#include "tests/unit/offload/memory/arena_support.h"

namespace tidegate::offload {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPage = 4096;

std::byte* Take(Arena& arena, std::size_t bytes, const BlockOptions& options = {}) {
  const Result<std::byte*> block = arena.Allocate(bytes, options);
  EXPECT_TRUE(block.ok()) << block.status().message();
  return block.ok() ? block.value() : nullptr;
}

TEST(ArenaTest, TakesWhatWasAskedForAndAtMostAHundredthMore) {
  const auto segment = MakeSegment(256 * kMiB, 1, PageChoice::kNoHugePool);
  const auto arena = MakeArena(segment, Unpinned());
  // Sizes just above powers of two, at which torch's allocator takes twice as much.
  std::size_t requested = 0;
  for (const std::size_t bytes : {33 * kMiB + 1, 17 * kMiB + 4, 9 * kMiB + 12, 5 * kMiB + 100}) {
    std::memset(Take(*arena, bytes), 1, bytes);
    requested += bytes;
  }
  for (int i = 0; i < 1000; ++i) {
    std::memset(Take(*arena, 16 * kKiB + 4), 2, 16 * kKiB + 4);
    requested += 16 * kKiB + 4;
  }
  const ArenaStats stats = arena->Stats();
  EXPECT_EQ(stats.requested_bytes, requested);
  EXPECT_EQ(stats.blocks, 1004u);
  EXPECT_EQ(PageBytesOf(segment->fd()), stats.committed_bytes);
  EXPECT_LE(static_cast<double>(stats.committed_bytes), 1.01 * static_cast<double>(requested));
  EXPECT_GT(static_cast<double>(stats.torch_pinned_bytes), 1.8 * static_cast<double>(requested));
}

TEST(ArenaTest, SmallBlocksPayForTheirRounding) {
  // What docs/offload.md says: from 8 KiB on a hundredth, and 128 bytes for 68.
  const auto ratio = [](std::size_t bytes) {
    const auto arena = MakeArena(MakeSegment(16 * kMiB), Unpinned());
    for (int i = 0; i < 1000; ++i) Take(*arena, bytes);
    const ArenaStats stats = arena->Stats();
    return static_cast<double>(stats.committed_bytes) / static_cast<double>(stats.requested_bytes);
  };
  EXPECT_LE(ratio(8 * kKiB + 1), 1.01);
  EXPECT_NEAR(ratio(68), 128.0 / 68.0, 0.1);
}

TEST(ArenaTest, GapsBeforePageAlignedBlocksAreLittle) {
  const auto segment = MakeSegment(64 * kMiB);
  const auto arena = MakeArena(segment, Unpinned());
  for (int i = 0; i < 50; ++i) Take(*arena, Arena::kPageAligned + 1);
  const ArenaStats stats = arena->Stats();
  EXPECT_LE(static_cast<double>(stats.committed_bytes),
            1.005 * static_cast<double>(stats.requested_bytes));
}

TEST(ArenaTest, SmallBlocksShareAPage) {
  const auto segment = MakeSegment(2 * kMiB);
  const auto arena = MakeArena(segment, Unpinned());
  std::byte* const first = Take(*arena, 1);
  EXPECT_EQ(Take(*arena, 65), first + 64);
  EXPECT_EQ(Take(*arena, 3), first + 192);
  EXPECT_EQ(PageBytesOf(segment->fd()), kPage);
  EXPECT_EQ(arena->Stats().extent_bytes, 256u);
}

TEST(ArenaTest, BlocksAreAlignedAsPromised) {
  const auto arena = MakeArena(MakeSegment(64 * kMiB), Unpinned());
  const auto is_aligned = [](const std::byte* block, std::size_t alignment) {
    return reinterpret_cast<std::uintptr_t>(block) % alignment == 0;
  };
  EXPECT_TRUE(is_aligned(Take(*arena, 1), 64));
  EXPECT_TRUE(is_aligned(Take(*arena, Arena::kPageAligned), kPage));
  EXPECT_TRUE(is_aligned(Take(*arena, 1, {.alignment = kHugePageBytes}), kHugePageBytes));
  EXPECT_TRUE(is_aligned(Take(*arena, 1, {.alignment = 8}), 64));
  for (const std::size_t bad : {std::size_t{3}, std::size_t{96}, 2 * kHugePageBytes})
    EXPECT_EQ(arena->Allocate(1, {.alignment = bad}).status().code(), StatusCode::kInvalidArgument);
}

TEST(ArenaTest, NothingIsNull) {
  const auto segment = MakeSegment(2 * kMiB);
  const auto arena = MakeArena(segment);
  EXPECT_EQ(Take(*arena, 0), nullptr);
  EXPECT_TRUE(arena->Free(nullptr).ok());
  EXPECT_EQ(arena->Stats().blocks, 0u);
  EXPECT_EQ(PageBytesOf(segment->fd()), 0u);
}

TEST(ArenaTest, SizesThatOverflowAreAStatus) {
  const auto arena = MakeArena(MakeSegment(2 * kMiB));
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  for (const std::size_t bytes : {kMost, kMost - 63, kMost / 2 + 1}) {
    const Status status = arena->Allocate(bytes).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(bytes) + " bytes"));
    EXPECT_THAT(status.message(), HasSubstr("short"));
    EXPECT_FALSE(arena->Reserve(bytes).ok());
  }
  const Status status = arena->Allocate(2 * kMiB + kPage).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("4 KiB short"));
  EXPECT_THAT(status.message(), HasSubstr("larger slices"));
  Take(*arena, 2 * kMiB);
}

TEST(ArenaTest, FreeingTwiceOrAStrangersPointerIsInvalid) {
  const auto arena = MakeArena(MakeSegment(2 * kMiB));
  std::byte* const block = Take(*arena, 100);
  std::byte stranger{};
  EXPECT_EQ(arena->Free(&stranger).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(arena->Free(block + 64).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(arena->Free(block + 1).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(arena->Free(block).ok());
  EXPECT_EQ(arena->Free(block).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(arena->Free(block).message(), HasSubstr("freed before"));
}

TEST(ArenaTest, FreedPagesStayForTheNextBlockUntilTrim) {
  const auto segment = MakeSegment(8 * kMiB);
  const auto arena = MakeArena(segment, Unpinned());
  std::byte* const kept = Take(*arena, 3 * kPage);
  std::byte* const freed = Take(*arena, 2 * kMiB);
  std::byte* const tail = Take(*arena, 64);
  ASSERT_TRUE(arena->Free(freed).ok());
  EXPECT_EQ(PageBytesOf(segment->fd()), 2 * kMiB + 4 * kPage);
  EXPECT_EQ(Take(*arena, 2 * kMiB - 64), freed);
  ASSERT_TRUE(arena->Free(freed).ok());
  ASSERT_TRUE(arena->Free(tail).ok());
  EXPECT_EQ(arena->Trim().value(), 2 * kMiB + kPage);
  EXPECT_EQ(PageBytesOf(segment->fd()), 3 * kPage);
  EXPECT_EQ(arena->Stats().committed_bytes, 3 * kPage);
  EXPECT_EQ(arena->Stats().extent_bytes, 3 * kPage);
  EXPECT_EQ(arena->Trim().value(), 0u);
  EXPECT_EQ(arena->Stats().committed_high_water, 2 * kMiB + 4 * kPage);
  kept[0] = std::byte{1};
}

TEST(ArenaTest, FreeGivesPagesBackOnceThereAreTooMany) {
  constexpr std::size_t kBlock = 8 * kMiB;
  const auto segment = MakeSegment(256 * kMiB);
  const auto arena = MakeArena(segment, Unpinned());
  const auto committed = [&] { return arena->Stats().committed_bytes; };
  std::vector<std::byte*> blocks(16);
  for (std::byte*& block : blocks) block = Take(*arena, kBlock);
  // Up to 64 MiB and a quarter of what is live, pages stay: 9 free blocks of 16 do, 10 do not.
  for (std::size_t freed = 1; freed <= 9; ++freed) {
    ASSERT_TRUE(arena->Free(blocks[freed]).ok());
    EXPECT_EQ(committed(), 16 * kBlock);
  }
  ASSERT_TRUE(arena->Free(blocks[10]).ok());
  EXPECT_EQ(committed(), 6 * kBlock);
  EXPECT_EQ(PageBytesOf(segment->fd()), 6 * kBlock);
  // What was reserved is there to stay, until other free pages are too many.
  ASSERT_TRUE(arena->Reserve(96 * kMiB).ok());
  ASSERT_TRUE(arena->Free(blocks[11]).ok());
  EXPECT_EQ(committed(), 6 * kBlock + 96 * kMiB);
}

TEST(ArenaTest, ReserveBringsThePagesAtOnce) {
  const auto segment = MakeSegment(64 * kMiB);
  int looks = 0;
  ArenaOptions options = Unpinned();
  options.room = MemoryRoom([&] {
    ++looks;
    return std::uint64_t{1} << 40;
  });
  const auto arena = MakeArena(segment, std::move(options));
  std::size_t bytes = 0;
  for (int i = 0; i < 10; ++i) bytes += Arena::Footprint(kMiB + 4) + Arena::Footprint(100);
  ASSERT_TRUE(arena->Reserve(bytes).ok());
  const std::size_t pages = PageBytesOf(segment->fd());
  looks = 0;
  for (int i = 0; i < 10; ++i) {
    Take(*arena, kMiB + 4);
    Take(*arena, 100);
  }
  EXPECT_EQ(looks, 0);
  EXPECT_EQ(PageBytesOf(segment->fd()), pages);
}

TEST(ArenaTest, GrowsByHugePagesOnlyWhereThatIsLittle) {
  const auto segment = MakeSegment(1024 * kMiB, 1, PageChoice::kNoHugePool);
  if (segment->pages().kind != PageKind::kTransparent) GTEST_SKIP() << segment->pages().reason;
  const auto arena = MakeArena(segment, Unpinned());
  Take(*arena, 100 * kMiB + kPage);
  EXPECT_EQ(arena->Stats().committed_bytes, 100 * kMiB + kPage);
  Take(*arena, 412 * kMiB);
  EXPECT_EQ(arena->Stats().committed_bytes, 514 * kMiB);
  Take(*arena, kPage);
  EXPECT_EQ(PageBytesOf(segment->fd()), 514 * kMiB);
}

TEST(ArenaTest, FreePagesAreGivenBackBeforeAnAllocationFails) {
  const auto segment = MakeSegment(64 * kMiB);
  std::uint64_t available = 24 * kMiB;
  ArenaOptions options = Unpinned();
  // As a machine that has 24 MiB in all.
  options.room = MemoryRoom([&] { return available - PageBytesOf(segment->fd()); });
  const auto arena = MakeArena(segment, std::move(options));
  std::byte* const first = Take(*arena, 10 * kMiB);
  Take(*arena, kMiB);
  ASSERT_TRUE(arena->Free(first).ok());
  Take(*arena, 20 * kMiB);
  EXPECT_EQ(PageBytesOf(segment->fd()), 21 * kMiB);
  EXPECT_EQ(arena->Allocate(20 * kMiB).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(arena->Stats().blocks, 2u);
}

TEST(ArenaTest, MoreThanTheMachineHasIsAStatusAndTouchesNothing) {
  const std::uint64_t bytes = 2 * AvailableMemory() + kMiB;
  if (bytes < kMiB || bytes > std::uint64_t{1} << 46)
    GTEST_SKIP() << "this machine does not tell its memory";
  const auto segment = MakeSegment(bytes);
  const auto arena = MakeArena(segment);
  const Status status = arena->Allocate(bytes).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(bytes) + " bytes"));
  EXPECT_THAT(status.message(), HasSubstr("available to this process"));
  EXPECT_EQ(PageBytesOf(segment->fd()), 0u);
}

TEST(ArenaTest, SharedBlocksKeepTheArenaAlive) {
  auto arena = MakeArena(MakeSegment(2 * kMiB));
  const std::weak_ptr<Arena> watched = arena;
  std::shared_ptr<std::byte> block = arena->AllocateShared(100).value();
  EXPECT_EQ(arena->Stats().blocks, 1u);
  arena.reset();
  EXPECT_FALSE(watched.expired());
  block.get()[99] = std::byte{1};
  block.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(ArenaTest, DestroyingItGivesTheSliceBackThoughPeersHoldTheFile) {
  const auto segment = MakeSegment(4 * kMiB, 2);
  const auto other = Arena::Create(segment, 1).value();
  Take(*other, kMiB);
  Take(*MakeArena(segment), 3 * kMiB);
  EXPECT_EQ(PageBytesOf(segment->fd()), kMiB);
}

TEST(ArenaTest, RandomProgramsKeepContentsAndPages) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    std::mt19937 random(seed);
    const auto segment =
        MakeSegment(64 * kMiB, 1, seed % 2 == 0 ? PageChoice::kSmall : PageChoice::kNoHugePool);
    const auto arena = MakeArena(segment, Unpinned());
    std::map<std::byte*, std::pair<std::size_t, int>> live;  // To bytes and what they hold.
    for (int step = 0; step < 600; ++step) {
      const unsigned what = random() % 20;
      if (what == 0) {
        ASSERT_TRUE(arena->Trim().ok());
      } else if (what < 12) {
        const std::size_t bytes =
            1 + random() % (random() % 10 == 0 ? 5 * kMiB : std::size_t{20000});
        const Result<std::byte*> block = arena->Allocate(bytes);
        if (!block.ok()) continue;
        std::memset(block.value(), step % 251, bytes);
        live[block.value()] = {bytes, step % 251};
      } else if (!live.empty()) {
        const auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
        const auto [bytes, value] = victim->second;
        ASSERT_TRUE(
            std::all_of(victim->first, victim->first + bytes,
                        [v = value](std::byte each) { return each == static_cast<std::byte>(v); }))
            << "seed " << seed << " step " << step;
        ASSERT_TRUE(arena->Free(victim->first).ok());
        live.erase(victim);
      }
      ASSERT_EQ(PageBytesOf(segment->fd()), arena->Stats().committed_bytes);
    }
    for (const auto& [block, _] : live) ASSERT_TRUE(arena->Free(block).ok());
    ASSERT_TRUE(arena->Trim().ok());
    EXPECT_EQ(PageBytesOf(segment->fd()), 0u);
    EXPECT_EQ(arena->Stats().requested_bytes, 0u);
    EXPECT_EQ(arena->Stats().torch_pinned_bytes, 0u);
  }
}

TEST(ArenaTest, ThreadsAllocateAndFreeAtOnce) {
  const auto arena = MakeArena(MakeSegment(64 * kMiB), Unpinned());
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread)
    threads.emplace_back([&arena, thread] {
      std::mt19937 random(thread);
      for (int step = 0; step < 200; ++step) {
        const std::size_t bytes = 1 + random() % 30000;
        std::byte* const block = arena->Allocate(bytes).value();
        std::memset(block, static_cast<int>(thread), bytes);
        EXPECT_EQ(block[bytes - 1], static_cast<std::byte>(thread));
        EXPECT_TRUE(step % 16 != 0 || arena->Trim().ok());
        EXPECT_TRUE(arena->Free(block).ok());
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena->Stats().blocks, 0u);
}

TEST(ArenaPinningTest, LimitThatIsShortIsToldOrAFailureWhereItWasRequired) {
  ChildProcess child([] {
    if (!LimitLocks(4 * kMiB)) return 1;
    const auto segment = MakeSegment(64 * kMiB);
    {
      const auto wanted = MakeArena(segment);
      if (!wanted->Allocate(2 * kMiB).ok() || !wanted->Allocate(6 * kMiB).ok()) return 2;
      const ArenaStats stats = wanted->Stats();
      if (stats.pinning != PinKind::kLocked || stats.pinned_bytes != 2 * kMiB) return 3;
      if (stats.pinning_problem.find("4 MiB short") == std::string::npos) return 4;
      if (stats.pinning_problem.find("RLIMIT_MEMLOCK") == std::string::npos) return 5;
    }
    if (PageBytesOf(segment->fd()) != 0) return 6;
    ArenaOptions options;
    options.pinning = Pinning::kRequired;
    const auto required = MakeArena(segment, std::move(options));
    const Status status = required->Allocate(6 * kMiB).status();
    if (status.code() != StatusCode::kResourceExhausted) return 7;
    if (status.message().find("2 MiB short") == std::string::npos) return 8;
    if (PageBytesOf(segment->fd()) != 0 || required->Stats().blocks != 0) return 9;
    if (!required->Allocate(4 * kMiB).ok()) return 10;
    if (required->Stats().pinned_bytes != 4 * kMiB) return 11;
    return required->Stats().pinning_problem.empty() ? 0 : 12;
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST(ArenaPinningTest, SwitchedOffSaysSo) {
  const auto arena = MakeArena(MakeSegment(2 * kMiB), Unpinned());
  Take(*arena, 1);
  EXPECT_EQ(arena->Stats().pinning, PinKind::kNone);
  EXPECT_THAT(arena->Stats().pinning_problem, HasSubstr("switched off"));
}

ArenaOptions FakePinned(FakeRegistrar::Record& record, Pinning pinning, bool parts = false) {
  ArenaOptions options;
  options.pinning = pinning;
  options.registrar = std::make_unique<FakeRegistrar>(record, 2 * kMiB, parts);
  return options;
}

TEST(ArenaPinningTest, DevicePiecesThatReachIntoLiveBlocksSurviveTrim) {
  FakeRegistrar::Record record;
  const auto segment = MakeSegment(16 * kMiB);
  const auto arena = MakeArena(segment, FakePinned(record, Pinning::kWanted));
  ASSERT_TRUE(arena->Reserve(6 * kMiB).ok());
  EXPECT_EQ(arena->Stats().pinned_pieces, 3u);
  std::byte* const block = Take(*arena, 3 * kMiB);
  // The first piece is the block's, the second half of it, the third nobody's.
  EXPECT_EQ(arena->Trim().value(), 2 * kMiB);
  EXPECT_EQ(arena->Stats().pinned_bytes, 4 * kMiB);
  EXPECT_EQ(PageBytesOf(segment->fd()), 4 * kMiB);
  ASSERT_TRUE(arena->Free(block).ok());
  EXPECT_EQ(arena->Trim().value(), 4 * kMiB);
  EXPECT_TRUE(record.held.empty());
}

TEST(ArenaPinningTest, ARefusalOfTheDriverLeavesNothingWhereItWasRequired) {
  FakeRegistrar::Record record{.held = {}, .calls = 0, .fail_at_call = 1};
  const auto segment = MakeSegment(16 * kMiB);
  const auto arena = MakeArena(segment, FakePinned(record, Pinning::kRequired));
  EXPECT_THAT(arena->Allocate(4 * kMiB).status().message(), HasSubstr("driver refuses"));
  EXPECT_EQ(PageBytesOf(segment->fd()), 0u);
  EXPECT_TRUE(record.held.empty());
  EXPECT_EQ(arena->Stats().blocks, 0u);
}

TEST(ArenaPinningTest, DestroyingItReleasesEveryPiece) {
  FakeRegistrar::Record record;
  {
    const auto arena = MakeArena(MakeSegment(16 * kMiB), FakePinned(record, Pinning::kWanted));
    Take(*arena, 5 * kMiB);
    EXPECT_EQ(record.held.size(), 3u);
  }
  EXPECT_TRUE(record.held.empty());
}

TEST(ArenaForkTest, AChildReadsAndWritesButDoesNotOwn) {
  FakeRegistrar::Record record;
  auto segment = MakeSegment(4 * kMiB);
  auto arena = MakeArena(segment, FakePinned(record, Pinning::kWanted));
  std::byte* const block = Take(*arena, 2 * kMiB);
  block[0] = std::byte{1};
  ChildProcess child([&] {
    if (block[0] != std::byte{1}) return 1;
    block[1] = std::byte{2};
    if (arena->Allocate(1).status().code() != StatusCode::kAborted) return 2;
    if (arena->Reserve(1).code() != StatusCode::kAborted) return 3;
    if (arena->Trim().status().code() != StatusCode::kAborted) return 4;
    if (!arena->Free(block).ok() || arena->Stats().blocks != 0) return 5;
    arena.reset();
    return record.held.size() == 1 ? 0 : 6;
  });
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(block[0], std::byte{1});
  EXPECT_EQ(block[1], std::byte{2});
  EXPECT_EQ(PageBytesOf(segment->fd()), 2 * kMiB);
  EXPECT_EQ(arena->Stats().blocks, 1u);
  EXPECT_TRUE(arena->Free(block).ok());
}

TEST(TorchPinnedBytesTest, IsTheNextPowerOfTwo) {
  EXPECT_EQ(TorchPinnedBytes(0), 0u);
  EXPECT_EQ(TorchPinnedBytes(1), 1u);
  EXPECT_EQ(TorchPinnedBytes(4096), 4096u);
  EXPECT_EQ(TorchPinnedBytes(4097), 8192u);
  // 4,347,592,704 halfs, of which a user reported twice as much.
  EXPECT_EQ(TorchPinnedBytes(std::size_t{4347592704} * 2), std::size_t{1} << 34);
  EXPECT_EQ(TorchPinnedBytes(std::numeric_limits<std::size_t>::max()),
            std::numeric_limits<std::size_t>::max());
}

}  // namespace
}  // namespace tidegate::offload
