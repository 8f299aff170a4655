#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/transport/shm/node_service.h"
#include "collectives/transport/shm/shm_transport.h"
#include "common/clock.h"
#include "common/unique_fd.h"
#include "tests/unit/collectives/transport/shm/file_bootstrap.h"

namespace tidegate {

inline constexpr Nanoseconds kTestLimit = std::chrono::seconds(20);
inline constexpr std::size_t kTestStageBytes = 64 << 10;

inline TimePoint TestDeadline() { return SteadyClock().Now() + kTestLimit; }

/// True once `condition` holds; false when it does not within kTestLimit.
inline bool Eventually(const std::function<bool()>& condition) {
  const TimePoint deadline = TestDeadline();
  while (!condition()) {
    if (SteadyClock().Now() >= deadline) return false;
    sched_yield();
  }
  return true;
}

/// Counters that the test and all its children see.
class Board {
 public:
  Board()
      : words_(static_cast<std::atomic<std::int64_t>*>(
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  ~Board() { munmap(words_, 4096); }

  std::atomic<std::int64_t>& operator[](int index) { return words_[index]; }
  bool Await(int index, std::int64_t value) {
    return Eventually([&] { return words_[index].load() >= value; });
  }

 private:
  std::atomic<std::int64_t>* const words_;
};

/// A forked child in which expectations count; killed and reaped when the object goes.
class RankProcess {
 public:
  explicit RankProcess(const std::function<void()>& body) {
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      body();
      NodeService::StopProcess();
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess() {
    if (reaped_) return;
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  void Signal(int signal) { kill(pid_, signal); }
  /// Returns once no thread of it runs: SIGSTOP alone only asks for that.
  bool Stop() {
    Signal(SIGSTOP);
    int status = 0;
    return waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status);
  }

  /// True when the body ran to its end, within the limit, with no failed expectation.
  bool Succeeded(int limit_ms = 60'000) {
    pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    if (poll(&ended, 1, limit_ms) != 1) return false;
    int status = 0;
    reaped_ = waitpid(pid_, &status, 0) == pid_;
    return reaped_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  bool reaped_ = false;
};

/// A group whose ranks the test forks.
class TestGroup {
 public:
  explicit TestGroup(int ranks, std::string name = "0") : ranks_(ranks), name_(std::move(name)) {}

  ShmTransport::Options Options(int rank, Bootstrap& bootstrap) const {
    return {.group_name = name_,
            .rank = rank,
            .ranks = ranks_,
            .stage_bytes = kTestStageBytes,
            .bootstrap = &bootstrap,
            .deadline = TestDeadline(),
            .interrupted = nullptr,
            .cancelled = nullptr};
  }
  Result<std::unique_ptr<ShmTransport>> TryAttach(int rank) const {
    FileBootstrap bootstrap(path());
    return ShmTransport::Attach(Options(rank, bootstrap));
  }
  /// Null, with a failed expectation, when it does not work.
  std::unique_ptr<ShmTransport> Attach(int rank) const {
    Result<std::unique_ptr<ShmTransport>> transport = TryAttach(rank);
    EXPECT_TRUE(transport.ok()) << transport.status().message();
    return transport.ok() ? std::move(transport).value() : nullptr;
  }
  void Decline(int rank, const Status& reason) const {
    FileBootstrap bootstrap(path());
    ShmTransport::Decline(Options(rank, bootstrap), reason);
  }
  void Announce(int rank) const {
    FileBootstrap bootstrap(path());
    const Status status = ShmTransport::AnnouncePresence(bootstrap, rank);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  int ranks() const { return ranks_; }
  std::filesystem::path path() const { return directory_.path() / name_; }

 private:
  const int ranks_;
  const std::string name_;
  const TemporaryDirectory directory_;
};

/// Counts news of deaths; told after the transports that were there before it.
class DeathCounter final : public DeathListener {
 public:
  DeathCounter() { service_->AddListener(this); }
  ~DeathCounter() override { service_->RemoveListener(this); }
  void OnDeath() override { deaths_.fetch_add(1); }
  int deaths() const { return deaths_.load(); }

 private:
  const std::shared_ptr<NodeService> service_ = NodeService::Get().value();
  std::atomic<int> deaths_{0};
};

/// Sleeps on the process's doorbell, as waiters do, until `condition` holds.
inline bool SleepUntil(ShmTransport& transport, const std::function<bool()>& condition) {
  const TimePoint deadline = TestDeadline();
  while (!condition()) {
    if (SteadyClock().Now() >= deadline) return false;
    const std::uint32_t ticket = transport.doorbell().Arm();
    if (condition()) {
      transport.doorbell().Disarm();
      return true;
    }
    transport.doorbell().Sleep(ticket, SteadyClock().Now() + transport.max_sleep());
  }
  return true;
}

/// One operation in which every rank waits for all: arrival, a staged word, and its consumption.
inline void ExchangeOnce(ShmTransport& transport, std::uint64_t index) {
  const int ranks = transport.ranks();
  const int self = transport.rank();
  ASSERT_TRUE(transport.CommitStage(0, 0, sizeof(std::uint64_t)).ok());
  *reinterpret_cast<std::uint64_t*>(transport.StageOf(0, self)) =
      index * 1000 + static_cast<std::uint64_t>(self);
  transport.Arrive(0, index,
                   {.sequence = index,
                    .elements = 1024,
                    .collective = Collective::kAllGather,
                    .dtype = DataType::kFloat32},
                   {});
  transport.Signal(0, kReady, index);
  transport.Wake();
  for (int peer = 0; peer < ranks; ++peer) {
    ASSERT_TRUE(SleepUntil(transport,
                           [&] {
                             return transport.HasArrived(0, peer, index) &&
                                    transport.HasReached(0, peer, kReady, index);
                           }))
        << "rank " << self << " never saw rank " << peer;
    EXPECT_EQ(transport.ArrivalOf(0, peer, index).sequence, index);
    EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(transport.StageOf(0, peer)),
              index * 1000 + static_cast<std::uint64_t>(peer));
  }
  transport.Signal(0, kConsumed, index);
  transport.Wake();
  for (int peer = 0; peer < ranks; ++peer)
    ASSERT_TRUE(
        SleepUntil(transport, [&] { return transport.HasReached(0, peer, kConsumed, index); }));
}

}  // namespace tidegate
