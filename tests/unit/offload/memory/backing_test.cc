#include "offload/memory/backing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "tests/unit/offload/memory/arena_support.h"

namespace tidegate::offload {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPage = 4096;

class BackingTest : public ::testing::TestWithParam<Backing::Populate> {
 protected:
  Backing& Make(std::size_t slice_bytes, RunPieces run = nullptr, MemoryRoom room = MemoryRoom(),
                PageChoice pages = PageChoice::kSmall) {
    segment_ = MakeSegment(slice_bytes, 2, pages);
    slice_ = std::move(segment_->MapSlice(1, Access::kReadWrite)).value();
    backing_ = std::make_unique<Backing>(segment_, 1, slice_.data(), std::move(run),
                                         std::move(room), GetParam());
    return *backing_;
  }
  Status CommitRange(ByteRange range, int node = kAnyNode) {
    return backing_->Commit(backing_->Missing(range), node);
  }
  std::size_t Pages() const { return PageBytesOf(segment_->fd()); }
  std::size_t ResidentPages(ByteRange range) const {
    std::vector<unsigned char> resident(range.bytes() / kPage);
    EXPECT_EQ(mincore(slice_.data() + range.begin, range.bytes(), resident.data()), 0);
    return static_cast<std::size_t>(
        std::ranges::count_if(resident, [](unsigned char byte) { return (byte & 1) != 0; }));
  }

  std::shared_ptr<const NodeSegment> segment_;
  SliceMapping slice_;
  std::unique_ptr<Backing> backing_;
};

TEST_P(BackingTest, PagesComeToTheByteAndGo) {
  Backing& backing = Make(8 * kMiB);
  ASSERT_TRUE(CommitRange({kPage, 3 * kPage}).ok());
  EXPECT_EQ(Pages(), 2 * kPage);
  // What fallocate brings is zeroed by the first use, and does not count before.
  EXPECT_EQ(ResidentPages({0, 8 * kPage}), GetParam() == Backing::Populate::kNever ? 0u : 2u);
  ASSERT_TRUE(CommitRange({0, 5 * kPage}).ok());
  EXPECT_EQ(Pages(), 5 * kPage);
  EXPECT_EQ(backing.bytes(), 5 * kPage);
  ASSERT_TRUE(backing.Release({2 * kPage, 4 * kPage}).ok());
  EXPECT_EQ(Pages(), 3 * kPage);
  EXPECT_EQ(backing.Missing({0, 5 * kPage}), (std::vector<ByteRange>{{2 * kPage, 4 * kPage}}));
}

TEST_P(BackingTest, WhatWasReleasedComesBackAsZeros) {
  Backing& backing = Make(2 * kMiB);
  ASSERT_TRUE(CommitRange({0, kPage}).ok());
  slice_.data()[17] = std::byte{1};
  ASSERT_TRUE(backing.Release({0, kPage}).ok());
  ASSERT_TRUE(CommitRange({0, kPage}).ok());
  EXPECT_EQ(slice_.data()[17], std::byte{0});
}

TEST_P(BackingTest, LackOfMemoryTouchesNothingAndSaysWhatIsShort) {
  Make(64 * kMiB, nullptr, MemoryRoom([] { return 10 * kMiB; }));
  const Status status = CommitRange({0, 32 * kMiB});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("10 MiB are available"));
  EXPECT_THAT(status.message(), HasSubstr("22 MiB short"));
  EXPECT_THAT(status.message(), HasSubstr("free memory"));
  EXPECT_EQ(Pages(), 0u);
  EXPECT_TRUE(CommitRange({0, 10 * kMiB}).ok());
}

TEST_P(BackingTest, MemoryThatOthersTakeMeanwhileIsNoticed) {
  // Enough at first; a rank beside this one then takes nearly all.
  std::atomic<int> looks{0};
  Make(256 * kMiB, nullptr, MemoryRoom([&] { return looks.fetch_add(1) < 2 ? 256 * kMiB : kMiB; }));
  EXPECT_EQ(CommitRange({0, 200 * kMiB}).code(), StatusCode::kResourceExhausted);
  EXPECT_GE(looks.load(), 3);
  EXPECT_EQ(Pages(), 0u);
  EXPECT_EQ(backing_->bytes(), 0u);
}

TEST_P(BackingTest, PiecesAreTouchedByTheThreadsThatRunThem) {
  std::set<std::size_t> seen;
  std::size_t pieces_run = 0;
  const RunPieces run = [&](std::size_t pieces, FunctionRef<Status(std::size_t)> commit) {
    pieces_run = pieces;
    std::vector<std::thread> threads;
    std::vector<Status> outcomes(pieces);
    for (std::size_t piece = 0; piece < pieces; ++piece)
      threads.emplace_back([&, piece] { outcomes[piece] = commit(piece); });
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : outcomes) TIDEGATE_RETURN_IF_ERROR(status);
    return Status();
  };
  Make(128 * kMiB, run);
  ASSERT_TRUE(CommitRange({8 * kMiB, 60 * kMiB + kPage}).ok());
  EXPECT_EQ(pieces_run, 4u);
  EXPECT_EQ(Pages(), 52 * kMiB + kPage);
}

TEST_P(BackingTest, AFailedPieceLeavesNoPages) {
  const RunPieces run = [&](std::size_t, FunctionRef<Status(std::size_t)> commit) {
    TIDEGATE_RETURN_IF_ERROR(commit(0));
    return Status(StatusCode::kInternal, "a thread was lost");
  };
  Make(64 * kMiB, run);
  ASSERT_TRUE(CommitRange({0, kPage}).ok());
  EXPECT_THAT(CommitRange({0, 40 * kMiB}).message(), HasSubstr("thread was lost"));
  EXPECT_EQ(Pages(), kPage);
}

TEST_P(BackingTest, PagesLieOnTheNodeThatWasNamed) {
  Make(2 * kMiB);
  ASSERT_TRUE(CommitRange({0, 4 * kPage}, 0).ok());
  if (!backing_->placement_problem().empty()) GTEST_SKIP() << backing_->placement_problem();
  slice_.data()[0] = std::byte{1};
  const int node = NodeOf(slice_.data());
  if (node == kAnyNode) GTEST_SKIP() << "the kernel does not tell where a page is";
  EXPECT_EQ(node, 0);
}

TEST_P(BackingTest, NodesThatDoNotExistAreTheCallersMistake) {
  Make(2 * kMiB);
  ASSERT_TRUE(CommitRange({0, kPage}, 0).ok());
  if (!backing_->placement_problem().empty()) GTEST_SKIP() << backing_->placement_problem();
  const Status status = CommitRange({kPage, 2 * kPage}, 1000);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("1000"));
  EXPECT_EQ(CommitRange({kPage, 2 * kPage}, 1024).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Pages(), kPage);
}

INSTANTIATE_TEST_SUITE_P(Kernels, BackingTest,
                         ::testing::Values(Backing::Populate::kAutomatic,
                                           Backing::Populate::kNever),
                         [](const auto& each) {
                           return each.param == Backing::Populate::kNever ? "Old" : "New";
                         });

/// Bytes mapped by huge pages in the mapping of this process that begins at `address`.
std::size_t HugeBytesAt(const std::byte* address, std::size_t bytes) {
  std::ifstream stream("/proc/self/smaps");
  std::size_t huge = 0;
  bool inside = false;
  for (std::string line; std::getline(stream, line);) {
    std::istringstream range(line);
    std::istringstream field(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::string name;
    std::size_t kib = 0;
    if (range >> std::hex >> begin >> dash >> end && dash == '-')
      inside = begin >= reinterpret_cast<std::uintptr_t>(address) &&
               end <= reinterpret_cast<std::uintptr_t>(address + bytes);
    else if (inside && field >> name >> kib && name == "ShmemPmdMapped:")
      huge += kib * 1024;
  }
  return huge;
}

TEST(TransparentPagesTest, WholeUnitsAreHugeAndNothingElseIsTaken) {
  const auto segment = MakeSegment(64 * kMiB, 1, PageChoice::kNoHugePool);
  if (segment->pages().kind != PageKind::kTransparent) GTEST_SKIP() << segment->pages().reason;
  const SliceMapping slice = std::move(segment->MapSlice(0, Access::kReadWrite)).value();
  Backing backing(segment, 0, slice.data(), nullptr);
  const auto commit = [&](ByteRange range) {
    return backing.Commit(backing.Missing(range), kAnyNode);
  };
  ASSERT_TRUE(commit({kMiB, 8 * kMiB + kPage}).ok());
  EXPECT_EQ(PageBytesOf(segment->fd()), 7 * kMiB + kPage);
  const std::size_t huge = HugeBytesAt(slice.data(), slice.bytes());
  EXPECT_EQ(huge, backing.huge_bytes());
  // Else one page of a unit that was huge would bring the whole of it back.
  ASSERT_TRUE(backing.Release({2 * kMiB, 3 * kMiB}).ok());
  ASSERT_TRUE(backing.Release({3 * kMiB, 4 * kMiB}).ok());
  ASSERT_TRUE(commit({3 * kMiB, 3 * kMiB + kPage}).ok());
  EXPECT_EQ(PageBytesOf(segment->fd()), 5 * kMiB + 2 * kPage);
  EXPECT_LE(backing.huge_bytes(), 4 * kMiB);
  if (huge == 0) GTEST_SKIP() << "the kernel had no huge page to give";
  EXPECT_EQ(huge, 6 * kMiB);
}

TEST(HugePoolTest, PagesOfThePoolComeAndGo) {
  const auto made = NodeSegment::Create(
      {.slice_bytes = 4 * kMiB, .expected_bytes = 2 * kMiB, .pages = PageChoice::kHugePool});
  if (!made.ok()) GTEST_SKIP() << made.status().message();
  const SliceMapping slice = std::move(made.value()->MapSlice(0, Access::kReadWrite)).value();
  Backing backing(made.value(), 0, slice.data(), nullptr);
  EXPECT_EQ(backing.page_bytes(), kHugePageBytes);
  const std::size_t free = FreeHugePoolBytes();
  ASSERT_TRUE(backing.Commit({{0, kHugePageBytes}}, kAnyNode).ok());
  EXPECT_EQ(FreeHugePoolBytes(), free - kHugePageBytes);
  slice.data()[kHugePageBytes - 1] = std::byte{1};
  ASSERT_TRUE(backing.Release({0, kHugePageBytes}).ok());
  EXPECT_EQ(FreeHugePoolBytes(), free);
}

TEST(MemoryRoomTest, FewPagesAreTakenWithoutALook) {
  int looks = 0;
  MemoryRoom room([&] {
    ++looks;
    return std::uint64_t{16} << 30;
  });
  for (int page = 0; page < 1000; ++page) ASSERT_TRUE(room.Take(kPage).ok());
  EXPECT_LE(looks, 2);
  EXPECT_FALSE(room.Take(std::size_t{17} << 30).ok());
}

TEST(MemoryRoomTest, LooksEachTimeWhereThereIsLittle) {
  int looks = 0;
  MemoryRoom room([&] {
    ++looks;
    return 100 * kPage;
  });
  for (int page = 0; page < 10; ++page) ASSERT_TRUE(room.Take(kPage).ok());
  EXPECT_EQ(looks, 10);
}

}  // namespace
}  // namespace tidegate::offload
