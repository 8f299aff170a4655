#include "offload/transfer/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tidegate::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void* At(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): not followed
}

Status CheckRange(std::uintptr_t source, std::uintptr_t destination, std::size_t bytes) {
  return CheckChunk({.source = At(source), .destination = At(destination), .bytes = bytes});
}

TEST(LaneTest, NeighboursAndEmptyChunksCanBeCopied) {
  EXPECT_TRUE(CheckRange(1000, 1100, 100).ok());
  EXPECT_TRUE(CheckRange(1100, 1000, 100).ok());
  EXPECT_TRUE(CheckRange(0, 0, 0).ok());
  EXPECT_TRUE(CheckRange(1000, 1000, 0).ok());
}

TEST(LaneTest, ChunksThatCannotBeAreRefusedWithTheirRange) {
  EXPECT_THAT(CheckRange(0, 1000, 1).message(), HasSubstr("has no address"));
  EXPECT_THAT(CheckRange(1000, 0, 1).message(), HasSubstr("has no address"));
  EXPECT_THAT(CheckRange(0x1000, 0x1001, 2).message(),
              AllOf(HasSubstr("2 bytes from 0x1000 to 0x1001"), HasSubstr("onto itself")));
  EXPECT_THAT(CheckRange(1099, 1000, 100).message(), HasSubstr("onto itself"));
  EXPECT_THAT(CheckRange(1000, 1000, 1).message(), HasSubstr("onto itself"));
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  EXPECT_THAT(CheckRange(1000, 10, kMost).message(), HasSubstr("beyond the end"));
  EXPECT_EQ(CheckRange(kMost, 10, 2).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidegate::offload
