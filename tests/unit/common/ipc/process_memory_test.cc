#include "common/ipc/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/unit/common/child_process.h"

namespace tidegate {
namespace {

constexpr std::size_t kBytes = 3 * 4096 + 17;

std::uint64_t AddressOf(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

/// A process that has `kBytes` of 7 where this one has them, until it goes.
class ProcessMemoryTest : public ::testing::Test {
 protected:
  ProcessMemoryTest()
      : memory_(kBytes, std::byte{7}), child_([] {
          pause();
          return 0;
        }) {
    // Not those of the child, which are of before.
    std::fill(memory_.begin(), memory_.end(), std::byte{9});
  }

  void SetUp() override {
    std::byte one{};
    if (const Status read = ReadProcessMemory(child_.pid(), AddressOf(memory_.data()), &one, 1);
        read.code() == StatusCode::kUnsupported)
      GTEST_SKIP() << read.message();
  }

  std::vector<std::byte> memory_;
  ChildProcess child_;
};

TEST_F(ProcessMemoryTest, ReadsWhatTheOtherProcessHas) {
  std::vector<std::byte> copy(kBytes);
  const Status read =
      ReadProcessMemory(child_.pid(), AddressOf(memory_.data()), copy.data(), kBytes);
  ASSERT_TRUE(read.ok()) << read.message();
  EXPECT_EQ(copy, std::vector<std::byte>(kBytes, std::byte{7}));
  EXPECT_TRUE(ReadProcessMemory(child_.pid(), AddressOf(memory_.data()), nullptr, 0).ok());
}

TEST_F(ProcessMemoryTest, MemoryThatIsNotThereIsAnErrorThatNamesTheAddress) {
  std::vector<std::byte> copy(8192);
  void* const page = mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(page, 8192);
  const Status read = ReadProcessMemory(getpid(), AddressOf(page), copy.data(), copy.size());
  EXPECT_EQ(read.code(), StatusCode::kInvalidArgument);
  char address[24];
  std::snprintf(address, sizeof(address), "%p", page);
  EXPECT_NE(read.message().find(address), std::string::npos) << read.message();
}

TEST_F(ProcessMemoryTest, MemoryThatCannotBeWrittenIsNoFaultOfTheOther) {
  auto* const page =
      static_cast<std::byte*>(mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const Status read = ReadProcessMemory(child_.pid(), AddressOf(memory_.data()), page, 4096);
  EXPECT_EQ(read.code(), StatusCode::kInternal);
  char address[24];
  std::snprintf(address, sizeof(address), "%p", static_cast<void*>(page));
  EXPECT_NE(read.message().find(address), std::string::npos) << read.message();
  munmap(page, 4096);
}

TEST_F(ProcessMemoryTest, MemoryThatEndsMidwayIsAnErrorToo) {
  auto* const pages =
      static_cast<std::byte*>(mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  munmap(pages + 4096, 4096);
  std::vector<std::byte> copy(8192);
  EXPECT_EQ(ReadProcessMemory(getpid(), AddressOf(pages), copy.data(), copy.size()).code(),
            StatusCode::kInvalidArgument);
  munmap(pages, 4096);
}

TEST_F(ProcessMemoryTest, OthersCannotReadWhatIsNotThereOrClosed) {
  auto* const pages =
      static_cast<std::byte*>(mmap(nullptr, 12288, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  munmap(pages + 4096, 4096);
  mprotect(pages + 8192, 4096, PROT_NONE);
  EXPECT_TRUE(OthersCanRead(pages, 4096));
  EXPECT_TRUE(OthersCanRead(pages + 4095, 1));
  EXPECT_FALSE(OthersCanRead(pages + 4096, 1));
  EXPECT_FALSE(OthersCanRead(pages + 8192, 1));
  EXPECT_TRUE(OthersCanRead(pages + 8192, 0));
  munmap(pages, 4096);
  munmap(pages + 8192, 4096);
}

TEST_F(ProcessMemoryTest, AProcessThatHasEndedIsLost) {
  child_.Kill();
  child_.Wait();
  std::byte one{};
  EXPECT_EQ(ReadProcessMemory(child_.pid(), AddressOf(memory_.data()), &one, 1).code(),
            StatusCode::kPeerLost);
}

}  // namespace
}  // namespace tidegate
