#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "collectives/operation.h"

namespace tidegate {

/// Where callbacks of finished operations run and their buffers are dropped: both may need the GIL,
/// which the progress thread must never wait for. Thread-safe.
///
/// Usually one thread does so, in the order of completion. A callback may wait for another one, as
/// those of chained futures do: what is handed over while a callback has not returned for kPatience
/// is taken by a second thread, and so on up to kMostThreads callbacks that wait for each other.
/// Two threads stay once they are there: the second one is what notices that a callback waits.
class Reaper {
 public:
  static constexpr std::size_t kMostThreads = 16;
  static constexpr std::size_t kMostIdleThreads = 2;
  /// Well above what a callback takes, so that order is kept; small next to the wait it ends.
  static constexpr std::chrono::microseconds kPatience{1000};

  Reaper() = default;
  /// Blocks until everything handed over is reaped. Must not run while holding the GIL.
  ~Reaper();

  /// Starts the first thread on first use.
  void Add(std::vector<std::shared_ptr<Operation>>* operations);

 private:
  using Clock = std::chrono::steady_clock;

  void Loop();
  /// Sees to it that a thread looks after what is queued. REQUIRES: mutex_ held.
  void EnsureStandby();
  /// Gives up the calling thread, which is to return at once. REQUIRES: mutex_ held.
  void Retire();
  /// REQUIRES: mutex_ held.
  void JoinRetired();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Operation>> operations_;  // Guarded, as the rest.
  bool stopping_ = false;
  std::size_t idle_ = 0;     ///< Threads that are waiting for something to do.
  std::size_t running_ = 0;  ///< Threads that are reaping.
  Clock::time_point last_start_;
  std::vector<std::thread> threads_;
  std::vector<std::thread> retired_;  ///< Have returned or are about to; not joined yet.
};

}  // namespace tidegate
