// The memory of a peer's process is read while that process does what it should not: unmaps it, is
// killed, is killed for want of memory, goes on without its main thread.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/transport/shm/node_service.h"
#include "collectives/transport/shm/process.h"
#include "collectives/transport/shm/shm_transport.h"
#include "common/ipc/process_memory.h"
#include "common/ipc/unix_socket.h"
#include "common/log.h"
#include "common/machine/machine.h"
#include "tests/unit/collectives/transport/shm/rank_process.h"

namespace tidegate {
namespace {

enum : int { kAddress, kThread, kVictimPid, kReads, kUnmapped, kGo };

constexpr std::size_t kBytes = 32 << 20;

std::uint64_t AddressOf(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

/// Rank 1 of two has kBytes of 7 and rank 0 can read them. Skips where the kernel forbids that.
class PeerMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RankProcess other([&] { board_.Await(kGo, 1); });
    std::byte one{};
    const Status read = ReadProcessMemory(other.pid(), AddressOf(&one), &one, 1);
    if (!read.ok()) GTEST_SKIP() << read.message();
  }

  /// Attaches as rank 1 and says where its bytes are; they stay for as long as the process does.
  std::unique_ptr<ShmTransport> AttachOwner() {
    auto* const bytes = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::fill_n(bytes, kBytes, std::byte{7});
    std::unique_ptr<ShmTransport> transport = group_.Attach(1);
    board_[kVictimPid] = getpid();
    board_[kThread] = NodeService::Get().value()->thread_id();
    board_[kAddress] = static_cast<std::int64_t>(AddressOf(bytes));
    return transport;
  }

  /// Attaches as rank 0 and waits until it can read rank 1.
  std::unique_ptr<ShmTransport> AttachReader() {
    SetLogLevel(LogLevel::kOff);  // The deaths are meant.
    std::unique_ptr<ShmTransport> transport = group_.Attach(0);
    EXPECT_TRUE(SleepUntil(
        *transport, [&] { return transport->ReadsMemoryOf(1) && board_[kAddress].load() != 0; }));
    copy_.resize(kBytes);
    return transport;
  }

  Status Read(ShmTransport& transport) {
    return transport.ReadMemory(1, static_cast<std::uint64_t>(board_[kAddress].load()),
                                copy_.data(), kBytes);
  }

  void ExpectLost(ShmTransport& transport) {
    ASSERT_TRUE(transport.failed());
    EXPECT_EQ(transport.failure().code, StatusCode::kPeerLost);
    EXPECT_EQ(transport.failure().culprit, 1);
    EXPECT_EQ(transport.failure().text,
              "rank 1 (pid " + std::to_string(board_[kVictimPid]) + ", host " + HostName() +
                  ") died before its first collective of group 0 [2 ranks]; see that process's "
                  "own output, restart the job from its last checkpoint");
  }

  const TestGroup group_{2};
  Board board_;
  std::vector<std::byte> copy_;
};

TEST_F(PeerMemoryTest, OfOneThatUnmapsItIsNotThereAndThePeerNotLost) {
  RankProcess owner([&] {
    const std::unique_ptr<ShmTransport> transport = AttachOwner();
    ASSERT_TRUE(board_.Await(kReads, 1));
    // NOLINTNEXTLINE(performance-no-int-to-ptr): this process's own, from the board
    munmap(reinterpret_cast<void*>(board_[kAddress].load()), kBytes);
    board_[kUnmapped] = 1;
    ASSERT_TRUE(board_.Await(kGo, 1));
  });
  RankProcess reader([&] {
    const std::unique_ptr<ShmTransport> transport = AttachReader();
    ASSERT_TRUE(Read(*transport).ok());
    EXPECT_EQ(std::count(copy_.begin(), copy_.end(), std::byte{7}), kBytes);
    board_[kReads] = 1;
    ASSERT_TRUE(board_.Await(kUnmapped, 1));
    const Status read = Read(*transport);
    EXPECT_EQ(read.code(), StatusCode::kInvalidArgument) << read.message();
    EXPECT_FALSE(transport->failed());
    board_[kGo] = 1;
  });
  EXPECT_TRUE(reader.Succeeded());
  EXPECT_TRUE(owner.Succeeded());
}

TEST_F(PeerMemoryTest, OfOneThatIsKilledMeanwhileIsReadWholeOrThePeerLost) {
  RankProcess owner([&] {
    const std::unique_ptr<ShmTransport> transport = AttachOwner();
    board_.Await(kGo, 1);  // Killed here.
  });
  RankProcess reader([&] {
    const std::unique_ptr<ShmTransport> transport = AttachReader();
    Status read = Read(*transport);
    for (; read.ok(); read = Read(*transport)) {
      ASSERT_EQ(std::count(copy_.begin(), copy_.end(), std::byte{7}), kBytes);
      std::fill(copy_.begin(), copy_.end(), std::byte{0});
      board_[kReads].fetch_add(1);
    }
    EXPECT_EQ(read.code(), StatusCode::kPeerLost) << read.message();
    ExpectLost(*transport);
  });
  ASSERT_TRUE(board_.Await(kReads, 3));
  owner.Signal(SIGKILL);
  EXPECT_TRUE(reader.Succeeded());
}

/// Holds a thread at its end, with the memory of its process.
class HeldThread {
 public:
  explicit HeldThread(pid_t thread) : thread_(thread) {
    held_ = ptrace(PTRACE_SEIZE, thread, nullptr, PTRACE_O_TRACEEXIT) == 0;
  }
  HeldThread(const HeldThread&) = delete;
  HeldThread& operator=(const HeldThread&) = delete;
  ~HeldThread() {
    if (!held_) return;
    ptrace(PTRACE_CONT, thread_, nullptr, nullptr);
    waitpid(thread_, nullptr, __WALL);
  }

  bool held() const { return held_; }
  bool AwaitEnd() const {
    int status = 0;
    return waitpid(thread_, &status, __WALL) == thread_ &&
           status >> 8 == (SIGTRAP | PTRACE_EVENT_EXIT << 8);
  }

 private:
  const pid_t thread_;
  bool held_ = false;
};

/// What the kernel does to those that it kills for want of memory: takes what they have, whatever
/// keeps them from ending.
bool TakeMemoryOf(pid_t pid) {
  constexpr long kProcessMrelease = 448;  // Of Linux 5.15, younger than some headers.
  const Result<UniqueFd> pidfd = OpenPidfd(pid);
  return pidfd.ok() &&
         Eventually([&] { return syscall(kProcessMrelease, pidfd.value().get(), 0) == 0; });
}

TEST_F(PeerMemoryTest, OfOneKilledForWantOfMemoryIsGoneBeforeItsEndAndThePeerLost) {
  RankProcess owner([&] {
    const std::unique_ptr<ShmTransport> transport = AttachOwner();
    board_.Await(kGo, 2);  // Killed here.
  });
  RankProcess reader([&] {
    const std::unique_ptr<ShmTransport> transport = AttachReader();
    ASSERT_TRUE(Read(*transport).ok());
    board_[kReads] = 1;
    ASSERT_TRUE(board_.Await(kGo, 1));
    // Nobody who watches the process has anything to tell yet.
    ASSERT_FALSE(transport->failed());
    EXPECT_EQ(Read(*transport).code(), StatusCode::kPeerLost);
    ExpectLost(*transport);
  });
  ASSERT_TRUE(board_.Await(kReads, 1));
  const HeldThread thread(static_cast<pid_t>(board_[kThread].load()));
  if (!thread.held()) GTEST_SKIP() << "processes cannot be traced here";
  EXPECT_FALSE(IsEnding(owner.pid()));
  owner.Signal(SIGKILL);
  ASSERT_TRUE(thread.AwaitEnd());
  EXPECT_TRUE(IsEnding(owner.pid()));
  ASSERT_TRUE(TakeMemoryOf(owner.pid()));
  EXPECT_FALSE(Process::Watch(owner.pid(), 0)->ended());
  board_[kGo] = 1;
  EXPECT_TRUE(reader.Succeeded());
}

TEST_F(PeerMemoryTest, OfOneWhoseMainThreadHasEndedIsReadAsEver) {
  RankProcess owner([&] {
    std::thread([&] {
      EXPECT_TRUE(Eventually([] { return IsEnding(getpid()); }));  // As far as the main thread is.
      {
        const std::unique_ptr<ShmTransport> transport = AttachOwner();
        EXPECT_TRUE(SleepUntil(*transport, [&] { return transport->HasLeft(0); }));
      }
      NodeService::StopProcess();
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }).detach();
    syscall(SYS_exit, 0);
  });
  RankProcess reader([&] {
    const std::unique_ptr<ShmTransport> transport = AttachReader();
    const Status read = Read(*transport);
    EXPECT_TRUE(read.ok()) << read.message();
    EXPECT_EQ(std::count(copy_.begin(), copy_.end(), std::byte{7}), kBytes);
    EXPECT_FALSE(transport->failed());
  });
  EXPECT_TRUE(reader.Succeeded());
  EXPECT_TRUE(owner.Succeeded());
}

}  // namespace
}  // namespace tidegate
