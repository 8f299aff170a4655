#include "collectives/transport/shm/process.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <thread>

#include "common/machine/machine.h"
#include "tests/unit/collectives/transport/shm/rank_process.h"

namespace tidegate {
namespace {

Result<UniqueFd> NoPidfd(pid_t) { return Status(StatusCode::kUnsupported, "an old kernel"); }

class ProcessTest : public testing::TestWithParam<Process::OpenFunction> {};

TEST_P(ProcessTest, SeesTheEndOfAProcessThatNobodyReaps) {
  Board board;
  RankProcess child([&] { board.Await(0, 1); });
  const std::shared_ptr<Process> process = Process::Watch(child.pid(), 0, GetParam());
  EXPECT_FALSE(process->CheckEnded());
  EXPECT_EQ(process->start_time(), StartTimeOf(child.pid()));
  child.Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return process->CheckEnded(); }));
  EXPECT_TRUE(process->ended());
}

TEST_P(ProcessTest, AStoppedProcessHasNotEnded) {
  Board board;
  RankProcess child([&] { board.Await(0, 1); });
  ASSERT_TRUE(child.Stop());
  const std::shared_ptr<Process> process = Process::Watch(child.pid(), 0, GetParam());
  EXPECT_FALSE(process->CheckEnded());
}

TEST_P(ProcessTest, OneThatIsGoneHasEnded) {
  RankProcess child([] {});
  const pid_t pid = child.pid();
  ASSERT_TRUE(child.Succeeded());  // And is reaped.
  EXPECT_TRUE(Process::Watch(pid, 0, GetParam())->ended());
}

TEST_P(ProcessTest, APidThatWasReusedMeansAProcessThatEnded) {
  const std::uint64_t start_time = StartTimeOf(getpid());
  ASSERT_GT(start_time, 0u);
  EXPECT_FALSE(Process::Watch(getpid(), start_time, GetParam())->ended());
  EXPECT_TRUE(Process::Watch(getpid(), start_time - 1, GetParam())->ended());
}

TEST_P(ProcessTest, LivesOnWithoutItsMainThread) {
  Board board;
  RankProcess child([&] {
    std::thread([&] {
      board[1] = syscall(SYS_gettid);
      board.Await(0, 1);
      _exit(0);
    }).detach();
    syscall(SYS_exit, 0);
  });
  ASSERT_TRUE(Eventually([&] { return IsEnding(child.pid()) && board[1].load() != 0; }));
  EXPECT_FALSE(IsEnding(static_cast<pid_t>(board[1].load())));
  const std::shared_ptr<Process> process = Process::Watch(child.pid(), 0, GetParam());
  EXPECT_FALSE(process->CheckEnded());
  board[0] = 1;
  EXPECT_TRUE(Eventually([&] { return process->CheckEnded(); }));
}

INSTANTIATE_TEST_SUITE_P(Kernels, ProcessTest, testing::Values(&OpenPidfd, &NoPidfd),
                         [](const auto& info) { return info.index == 0 ? "Pidfd" : "ProcOnly"; });

TEST(IsEndingTest, IsTrueFromTheKillOn) {
  Board board;
  RankProcess child([&] { board.Await(0, 1); });
  EXPECT_FALSE(IsEnding(child.pid()));
  ASSERT_TRUE(child.Stop());
  EXPECT_FALSE(IsEnding(child.pid()));
  child.Signal(SIGKILL);
  EXPECT_TRUE(IsEnding(child.pid()));
}

TEST(ProcessIdentityTest, DescribesThisProcess) {
  const ProcessIdentity self = ThisProcess().value();
  EXPECT_EQ(self.pid, getpid());
  EXPECT_EQ(self.boot_id, BootId().value());
  EXPECT_EQ(self.host, HostName());
  EXPECT_EQ(self.start_time, StartTimeOf(getpid()));
}

}  // namespace
}  // namespace tidegate
