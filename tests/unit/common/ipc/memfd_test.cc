#include "common/ipc/memfd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <limits>
#include <string>

#include "tests/unit/common/child_process.h"

namespace tidegate {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

UniqueFd Create(std::size_t size) {
  Result<UniqueFd> fd = CreateMemfd("test", size);
  EXPECT_TRUE(fd.ok()) << fd.status().message();
  return fd.ok() ? std::move(fd).value() : UniqueFd();
}

std::size_t AllocatedBytes(int fd) {
  struct stat file{};
  fstat(fd, &file);
  return static_cast<std::size_t>(file.st_blocks) * 512;
}

TEST(MemfdTest, HasTheSizeAskedForAndNoPages) {
  const UniqueFd fd = Create(3 * kMiB + 1);
  EXPECT_EQ(FileSize(fd.get()).value(), 3 * kMiB + 1);
  EXPECT_EQ(AllocatedBytes(fd.get()), 0u);
}

TEST(MemfdTest, ClosesOnExec) {
  const UniqueFd fd = Create(kMiB);
  EXPECT_EQ(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(MemfdTest, PagesOfTheHugePoolAreHuge) {
  const Result<UniqueFd> fd = CreateMemfd("test", 2 * kMiB, MemfdPages::kHugePool);
  if (!fd.ok()) GTEST_SKIP() << fd.status().message();
  struct stat file{};
  ASSERT_EQ(fstat(fd.value().get(), &file), 0);
  EXPECT_EQ(file.st_blksize, static_cast<blksize_t>(2 * kMiB));
  EXPECT_EQ(ftruncate(fd.value().get(), 0), -1);
}

TEST(MemfdTest, NobodyCanResizeOrUnseal) {
  const UniqueFd fd = Create(kMiB);
  EXPECT_EQ(ftruncate(fd.get(), kMiB / 2), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd.get(), 2 * kMiB), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(MemfdTest, CommitAllocatesTheRangeOnce) {
  const UniqueFd fd = Create(200 * kMiB);
  ASSERT_TRUE(CommitPages(fd.get(), 100 * kMiB, 2 * kMiB).ok());
  EXPECT_EQ(AllocatedBytes(fd.get()), 2 * kMiB);
  ASSERT_TRUE(CommitPages(fd.get(), 100 * kMiB, 2 * kMiB).ok());
  EXPECT_EQ(AllocatedBytes(fd.get()), 2 * kMiB);
  ASSERT_TRUE(CommitPages(fd.get(), 0, 70 * kMiB).ok());
  EXPECT_EQ(AllocatedBytes(fd.get()), 72 * kMiB);
}

TEST(MemfdTest, CommitOfNothingIsOk) {
  const UniqueFd fd = Create(kMiB);
  EXPECT_TRUE(CommitPages(fd.get(), 0, 0).ok());
  EXPECT_EQ(AllocatedBytes(fd.get()), 0u);
}

TEST(MemfdTest, CommitBeyondTheEndIsAnError) {
  const UniqueFd fd = Create(kMiB);
  EXPECT_FALSE(CommitPages(fd.get(), kMiB, 4096).ok());
  EXPECT_EQ(FileSize(fd.get()).value(), kMiB);
}

TEST(MemfdTest, SizeBeyondFileOffsetsIsResourceExhausted) {
  const Result<UniqueFd> fd = CreateMemfd("test", std::numeric_limits<std::size_t>::max());
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.status().code(), StatusCode::kResourceExhausted);
}

/// Writes down that the kernel shall kill this process, not another, if memory runs out after all.
void VolunteerForOutOfMemory() { std::ofstream("/proc/self/oom_score_adj") << 1000; }

bool IsResourceExhausted(const Status& status, const std::string& bytes) {
  return status.code() == StatusCode::kResourceExhausted &&
         status.message().find(bytes + " bytes") != std::string::npos &&
         status.message().find("free memory") != std::string::npos;
}

TEST(MemfdTest, CommitBeyondAvailableMemoryAllocatesNothing) {
  ChildProcess child([] {
    VolunteerForOutOfMemory();
    const std::size_t size = std::size_t{1} << 50;
    const UniqueFd fd = Create(size);
    if (!IsResourceExhausted(CommitPages(fd.get(), 0, size), "1125899906842624")) return 1;
    return AllocatedBytes(fd.get()) == 0 ? 0 : 2;
  });
  EXPECT_EQ(child.Wait(), 0);
}

// In a child with its own mount namespace, where a tiny file system can be made.
int CommitOnFullFileSystem() {
  constexpr int kCannotMount = 77;
  const uid_t uid = geteuid();
  if (uid != 0 && unshare(CLONE_NEWUSER) != 0) return kCannotMount;
  if (unshare(CLONE_NEWNS) != 0) return kCannotMount;
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return kCannotMount;
  if (mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") != 0) return kCannotMount;
  const UniqueFd fd(open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid()) return 1;
  return IsResourceExhausted(CommitPages(fd.get(), 0, kMiB), "1048576") ? 0 : 2;
}

TEST(MemfdTest, FullFileSystemIsResourceExhausted) {
  const int outcome = ChildProcess(&CommitOnFullFileSystem).Wait();
  if (outcome == 77) GTEST_SKIP() << "this user may not mount a small file system";
  EXPECT_EQ(outcome, 0);
}

TEST(MemfdTest, FileSizeOfNoFileIsAnError) {
  EXPECT_EQ(FileSize(-1).status().code(), StatusCode::kInternal);
}

// In a child: the limit cannot be raised again. Signals are ignored as Python does, or default.
int CreateUnderFileSizeLimit(void (*signal_action)(int)) {
  std::signal(SIGXFSZ, signal_action);
  const rlimit limit{.rlim_cur = kMiB, .rlim_max = kMiB};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
  if (!CreateMemfd("test", kMiB).ok()) return 2;
  const Result<UniqueFd> fd = CreateMemfd("test", 2 * kMiB);
  if (fd.ok()) return 3;
  if (fd.status().code() != StatusCode::kResourceExhausted) return 4;
  const std::string& message = fd.status().message();
  if (message.find("2097152 bytes") == std::string::npos) return 5;
  if (message.find("ulimit -f") == std::string::npos) return 6;
  return 0;
}

TEST(MemfdTest, FileSizeLimitIsAStatusAndNoSignal) {
  EXPECT_EQ(ChildProcess([] { return CreateUnderFileSizeLimit(SIG_IGN); }).Wait(), 0);
  EXPECT_EQ(ChildProcess([] { return CreateUnderFileSizeLimit(SIG_DFL); }).Wait(), 0);
}

}  // namespace
}  // namespace tidegate
