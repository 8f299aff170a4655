#include "offload/memory/registrar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/unit/common/child_process.h"
#include "tests/unit/offload/memory/arena_support.h"

namespace tidegate::offload {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPiece = 2 * kMiB;

class PieceTableTest : public ::testing::Test {
 protected:
  PieceTable Table(bool parts) {
    registrar_ = std::make_unique<FakeRegistrar>(record_, kPiece, parts);
    return PieceTable(registrar_.get(), memory_);
  }

  FakeRegistrar::Record record_;
  std::unique_ptr<FakeRegistrar> registrar_;
  std::byte memory_[1];  // Never touched beyond its address.
};

TEST_F(PieceTableTest, RegistersInPiecesOfAtMostTheLimit) {
  PieceTable table = Table(false);
  ASSERT_TRUE(table.Add({{0, 2 * kPiece + 4096}, {4 * kPiece, 4 * kPiece + 1}}).ok());
  EXPECT_EQ(table.pieces(), 4u);
  EXPECT_EQ(table.bytes(), 2 * kPiece + 4097);
  EXPECT_EQ(record_.held[2].size(), 4096u);
  EXPECT_EQ(record_.held[3].data(), memory_ + 4 * kPiece);
}

TEST_F(PieceTableTest, PathsBeyondHalfATebibyteTakeManyPieces) {
  FakeRegistrar registrar(record_, MakeLockRegistrar()->most_bytes_a_piece(), false);
  PieceTable table(&registrar, memory_);
  ASSERT_TRUE(table.Add({{0, std::size_t{600} << 30}}).ok());
  EXPECT_EQ(table.pieces(), 10u);
}

TEST_F(PieceTableTest, AFailureLeavesNothingOfTheCallBehind) {
  PieceTable table = Table(false);
  ASSERT_TRUE(table.Add({{8 * kPiece, 9 * kPiece}}).ok());
  record_.fail_at_call = 3;
  const Status status = table.Add({{0, kPiece}, {2 * kPiece, 6 * kPiece}});
  EXPECT_THAT(status.message(), HasSubstr("driver refuses"));
  EXPECT_EQ(table.pieces(), 1u);
  EXPECT_EQ(table.bytes(), kPiece);
  EXPECT_EQ(record_.held.size(), 1u);
}

TEST_F(PieceTableTest, WholePiecesAreKeptWhereTheyReachOut) {
  PieceTable table = Table(false);
  ASSERT_TRUE(table.Add({{0, 3 * kPiece}}).ok());
  EXPECT_EQ(table.Remove({4096, 2 * kPiece + 4096}),
            (std::vector<ByteRange>{{kPiece, 2 * kPiece}}));
  EXPECT_EQ(table.pieces(), 2u);
  EXPECT_TRUE(table.Remove({0, kPiece - 1}).empty());
  EXPECT_EQ(table.Remove({0, 4 * kPiece}), (std::vector<ByteRange>{{0, 4 * kPiece}}));
  EXPECT_TRUE(record_.held.empty());
}

TEST_F(PieceTableTest, PartsAreReleasedWhereTheyMayBe) {
  PieceTable table = Table(true);
  ASSERT_TRUE(table.Add({{0, 2 * kPiece}}).ok());
  EXPECT_EQ(table.Remove({4096, kPiece + 4096}), (std::vector<ByteRange>{{4096, kPiece + 4096}}));
  EXPECT_EQ(table.bytes(), kPiece);
  EXPECT_EQ(table.pieces(), 2u);
}

TEST_F(PieceTableTest, WithoutARegistrarNothingIsPinned) {
  PieceTable table(nullptr, memory_);
  ASSERT_TRUE(table.Add({{0, kPiece}}).ok());
  EXPECT_EQ(table.bytes(), 0u);
  EXPECT_EQ(table.Remove({0, kPiece}), (std::vector<ByteRange>{{0, kPiece}}));
}

std::size_t LockedBytes() {
  std::ifstream stream("/proc/self/status");
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with("VmLck:")) return std::stoul(line.substr(6)) * 1024;
  return 0;
}

TEST(LockRegistrarTest, LocksAndUnlocks) {
  ChildProcess child([] {
    if (!LimitLocks(4 * kMiB)) return 1;
    auto* const memory = static_cast<std::byte*>(
        mmap(nullptr, 8 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const auto registrar = MakeLockRegistrar();
    if (!registrar->CheckRoom(4 * kMiB).ok()) return 2;
    if (!registrar->Register({memory, 3 * kMiB}).ok()) return 3;
    if (LockedBytes() != 3 * kMiB) return 4;
    const Status room = registrar->CheckRoom(2 * kMiB);
    const Status status = registrar->Register({memory + 4 * kMiB, 2 * kMiB});
    for (const Status& each : {room, status}) {
      if (each.code() != StatusCode::kResourceExhausted) return 5;
      if (each.message().find("1 MiB short") == std::string::npos) return 6;
      if (each.message().find("ulimit -l") == std::string::npos) return 7;
    }
    registrar->Release({memory, 3 * kMiB});
    return LockedBytes() == 0 ? 0 : 8;
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST(HugePoolRegistrarTest, CallsItsPagesLocked) {
  const auto registrar = MakeHugePoolRegistrar();
  EXPECT_EQ(registrar->kind(), PinKind::kLocked);
  EXPECT_TRUE(registrar->CheckRoom(std::size_t{1} << 60).ok());
}

}  // namespace
}  // namespace tidegate::offload
