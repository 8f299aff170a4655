#include "collectives/kernels/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "collectives/kernels/copy_targets.h"

namespace tidegate {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kGuard = 2 * kLine;
constexpr std::byte kUntouched{0xa5};

class CopyTest : public testing::TestWithParam<KernelTarget> {
 protected:
  void SetUp() override {
    if (!IsSupported(GetParam())) GTEST_SKIP() << "this CPU has no " << NameOfTarget(GetParam());
  }

  // Copies `bytes` between buffers that start that far past a cache line, and checks the copy and
  // the bytes around it.
  void CopyAndCheck(std::size_t bytes, std::size_t dst_offset, std::size_t src_offset) {
    SCOPED_TRACE("bytes " + std::to_string(bytes) + ", dst " + std::to_string(dst_offset) +
                 ", src " + std::to_string(src_offset) + " past a line");
    const std::align_val_t line{kLine};
    // The source block ends with the source, so that an address sanitizer sees a read past it.
    const auto free_line = [](std::byte* block) { operator delete[](block, line); };
    std::unique_ptr<std::byte[], decltype(free_line)> source_block(
        new (line) std::byte[src_offset + bytes], free_line);
    std::unique_ptr<std::byte[], decltype(free_line)> block(
        new (line) std::byte[kGuard + dst_offset + bytes + kGuard], free_line);
    std::byte* const src = source_block.get() + src_offset;
    std::byte* const dst = block.get() + kGuard + dst_offset;
    for (std::size_t i = 0; i < bytes; ++i) src[i] = static_cast<std::byte>(i * 7 + i / 251 + 1);
    std::memset(block.get(), std::to_integer<int>(kUntouched),
                kGuard + dst_offset + bytes + kGuard);

    StreamingCopyFor(GetParam(), dst, src, bytes);

    ASSERT_TRUE(std::equal(src, src + bytes, dst));
    for (const std::byte* p = block.get(); p != dst; ++p) ASSERT_EQ(*p, kUntouched);
    for (const std::byte* p = dst + bytes; p != dst + bytes + kGuard; ++p)
      ASSERT_EQ(*p, kUntouched);
  }
};

TEST_P(CopyTest, EverySmallSizeAtSampledAlignments) {
  for (std::size_t bytes = 0; bytes <= 300; ++bytes) {
    for (std::size_t dst_offset : {0, 1, 8, 31, 32, 63}) {
      for (std::size_t src_offset : {0, 1, 16, 33, 63})
        ASSERT_NO_FATAL_FAILURE(CopyAndCheck(bytes, dst_offset, src_offset));
    }
  }
}

TEST_P(CopyTest, LargeSizeAtEveryAlignment) {
  for (std::size_t offset = 0; offset < kLine; ++offset) {
    ASSERT_NO_FATAL_FAILURE(CopyAndCheck(40'000 + offset, offset, 0));
    ASSERT_NO_FATAL_FAILURE(CopyAndCheck(40'000, 0, offset));
    ASSERT_NO_FATAL_FAILURE(CopyAndCheck(40'001, offset, (offset * 29 + 5) % kLine));
  }
}

TEST_P(CopyTest, NothingFromNowhere) { StreamingCopyFor(GetParam(), nullptr, nullptr, 0); }

INSTANTIATE_TEST_SUITE_P(Targets, CopyTest, testing::ValuesIn(KernelTargets()),
                         [](const auto& info) { return std::string(NameOfTarget(info.param)); });

TEST(StreamingCopyTest, CopiesWithTheBestInstructions) {
  std::vector<std::byte> src(100'003);
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<std::byte>(i % 253);
  std::vector<std::byte> dst(src.size());
  StreamingCopy(dst.data(), src.data(), src.size());
  EXPECT_EQ(dst, src);
}

}  // namespace
}  // namespace tidegate
