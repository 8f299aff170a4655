#include "offload/memory/slice_mapping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "tests/unit/common/child_process.h"
#include "tests/unit/offload/memory/arena_support.h"

namespace tidegate::offload {
namespace {

using ::testing::HasSubstr;

TEST(SliceMappingTest, LiesAtHugePagesAndTouchesNothing) {
  const auto segment = MakeSegment(4 * kMiB, 3);
  const SliceMapping slice = std::move(segment->MapSlice(1, Access::kReadWrite)).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slice.data()) % kHugePageBytes, 0u);
  EXPECT_EQ(slice.bytes(), 4 * kMiB);
  EXPECT_EQ(PageBytesOf(segment->fd()), 0u);
}

TEST(SliceMappingTest, SlicesAreApartAndShowTheSameMemoryTwice) {
  const auto segment = MakeSegment(2 * kMiB, 2);
  const SliceMapping first = std::move(segment->MapSlice(0, Access::kReadWrite)).value();
  const SliceMapping second = std::move(segment->MapSlice(1, Access::kReadWrite)).value();
  const SliceMapping view = std::move(segment->MapSlice(1, Access::kReadOnly)).value();
  first.data()[5] = std::byte{1};
  second.data()[5] = std::byte{2};
  EXPECT_EQ(view.Read(5, 1).value()[0], std::byte{2});
  EXPECT_EQ(first.Read(5, 1).value()[0], std::byte{1});
}

TEST(SliceMappingTest, ReadOnlyMappingsDoNotWrite) {
  const auto segment = MakeSegment(2 * kMiB);
  const SliceMapping view = std::move(segment->MapSlice(0, Access::kReadOnly)).value();
  EXPECT_EQ(view.Write(0, 1).status().code(), StatusCode::kInvalidArgument);
  const SliceMapping both = std::move(segment->MapSlice(0, Access::kReadWrite)).value();
  EXPECT_EQ(both.Write(7, 2).value().data(), both.data() + 7);
}

TEST(SliceMappingTest, BoundsAreCheckedWithoutOverflow) {
  const auto segment = MakeSegment(2 * kMiB);
  const SliceMapping view = std::move(segment->MapSlice(0, Access::kReadOnly)).value();
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  EXPECT_TRUE(view.Read(0, 2 * kMiB).ok());
  EXPECT_TRUE(view.Read(2 * kMiB, 0).ok());
  for (const auto& [offset, bytes] : std::vector<std::pair<std::size_t, std::size_t>>{
           {0, 2 * kMiB + 1}, {1, 2 * kMiB}, {2 * kMiB + 1, 0}, {kMost, 1}, {1, kMost}})
    EXPECT_EQ(view.Read(offset, bytes).status().code(), StatusCode::kInvalidArgument);
}

TEST(SliceMappingTest, OutlivesTheSegmentAndMoves) {
  auto segment = MakeSegment(2 * kMiB);
  SliceMapping slice = std::move(segment->MapSlice(0, Access::kReadWrite)).value();
  segment.reset();
  slice.data()[0] = std::byte{9};
  SliceMapping moved;
  moved = std::move(slice);
  EXPECT_EQ(moved.data()[0], std::byte{9});
}

TEST(NodeSegmentTest, RefusesRanksThatDoNotExist) {
  const auto segment = MakeSegment(2 * kMiB, 2);
  for (const int rank : {-1, 2})
    EXPECT_EQ(segment->MapSlice(rank, Access::kReadOnly).status().code(),
              StatusCode::kInvalidArgument);
  EXPECT_EQ(NodeSegment::Create({.ranks = 0}).status().code(), StatusCode::kInvalidArgument);
}

TEST(NodeSegmentTest, HugeSlicesAreSparseAndTooHugeOnesAStatus) {
  // Addresses alone: 64 TiB would not fit anywhere else.
  EXPECT_TRUE(NodeSegment::Create({.ranks = 4, .slice_bytes = std::size_t{1} << 44}).ok());
  for (const std::size_t bytes :
       {std::numeric_limits<std::size_t>::max(), std::size_t{1} << 63, std::size_t{1} << 62}) {
    const Status status = NodeSegment::Create({.ranks = 2, .slice_bytes = bytes}).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << bytes;
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(bytes)));
  }
}

TEST(NodeSegmentTest, AddressSpaceThatIsTooSmallIsAStatus) {
  ChildProcess child([] {
    const auto segment = MakeSegment(std::size_t{1} << 40);
    const rlimit limit{.rlim_cur = std::size_t{1} << 35, .rlim_max = std::size_t{1} << 35};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 1;
    const Status status = segment->MapSlice(0, Access::kReadWrite).status();
    if (status.code() != StatusCode::kResourceExhausted) return 2;
    return status.message().find("ulimit -v") == std::string::npos ? 3 : 0;
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST(NodeSegmentTest, AutomaticSlicesLeaveAddressesToOthers) {
  constexpr int kRanks = 8000;  // On a machine of 4 GiB, twice its memory for each is too much.
  const auto segment = NodeSegment::Create({.ranks = kRanks, .mappings = kRanks + 1});
  ASSERT_TRUE(segment.ok()) << segment.status().message();
  EXPECT_LE(segment.value()->slice_bytes() * (kRanks + 1), std::size_t{1} << 46);
}

TEST(NodeSegmentTest, AutomaticSlicesKeepToTheFileSizeLimit) {
  ChildProcess child([] {
    const rlimit limit{.rlim_cur = 64 * kMiB, .rlim_max = 64 * kMiB};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    const auto segment = NodeSegment::Create({.ranks = 2});
    if (!segment.ok() || segment.value()->slice_bytes() != 32 * kMiB) return 2;
    const Status status = NodeSegment::Create({.ranks = 2, .slice_bytes = 33 * kMiB}).status();
    if (status.code() != StatusCode::kResourceExhausted) return 3;
    return status.message().find("ulimit -f") == std::string::npos ? 4 : 0;
  });
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace tidegate::offload
