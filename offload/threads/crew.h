#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/function_ref.h"
#include "common/ipc/doorbell.h"
#include "common/status.h"
#include "offload/threads/thread_plan.h"

namespace tidegate::offload {

/// What a ThreadPool has in one process: its threads, and the job that they are at.
///
/// A job has a number. The caller writes the job, then its number, and rings. A worker that sees
/// the number joins by an exchange on its own seat; a caller that has run out of items closes the
/// seats of those that have not joined, by an exchange, too, and waits for the others. So a worker
/// that comes late finds its seat closed and touches nothing of a job that is over, and nobody
/// waits for a thread which the machine does not let run.
class Crew {
 public:
  using Body = FunctionRef<Status(std::size_t item, int thread)>;

  /// `ancestor`: the crew of the process that this one was forked from, or null; not owned.
  Crew(std::span<const ThreadPlace> places, Crew* ancestor);
  /// Joins the threads, in the process that made them.
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  /// Whether the calling thread is at an item of some crew.
  static bool IsInBody();

  /// The ForkGeneration() that made it.
  std::uint64_t generation() const { return generation_; }
  Crew* ancestor() const { return ancestor_; }

  Status Start();
  /// As ThreadPool::Run.
  Status Run(std::size_t items, Body body);

 private:
  /// One thread's part of the job. Two lines: adjacent ones are fetched together.
  struct alignas(128) Seat {
    /// Items left: the first in the high half, the one behind the last in the low half. Taken at
    /// either end by compare-exchange. Relaxed: the job's number orders all that an item reads.
    std::atomic<std::uint64_t> range{0};
    /// job number * 4 + Phase of a worker; a futex word. Never of the calling thread.
    std::atomic<std::uint32_t> phase{0};
    std::atomic<pid_t> tid{0};
    /// The failed item with the lowest index that this thread ran. Written in a job by its thread,
    /// read when that has left the job.
    std::optional<std::size_t> failed_item;
    Status failure;
    std::vector<int> others;  ///< Whom to help, in this order.
    pthread_t handle{};
    int numa = 0;
    int cpu = -1;  ///< Where it is pinned now; -1: to none. Changed by the caller alone.
  };
  enum Phase : std::uint32_t { kClosed, kJoined, kAwaited, kLeft };

  struct Entry {
    Crew* crew;
    int thread;
  };
  static void* Main(void* entry);
  void Serve(int thread);
  /// Sleeps, or spins first, until a job after `seen` is there.
  std::uint32_t AwaitJob(std::uint32_t seen);

  Status StartThreads();
  /// Ends and joins the threads below `made`.
  void StopThreads(std::size_t made);
  /// Sees to it that the caller does not run on the processor of a pinned worker: one of the two
  /// would wait for the other, for milliseconds, as the scheduler may not move the worker and sees
  /// no reason to move the caller. The worker takes the caller's place, which costs least; if the
  /// caller comes from elsewhere, it goes to its place.
  void SeatCaller();
  void Work(int thread);
  void Do(std::size_t item, int thread);
  /// Closes the seats of the missing and waits for the others.
  void Close(std::uint32_t number);
  void AwaitLeaving(std::size_t thread, std::uint32_t number);
  bool IsAlive(const Seat& seat) const;
  void Lose(std::size_t thread);
  Status Outcome();

  const std::vector<ThreadPlace> places_;
  const std::uint64_t generation_;
  Crew* const ancestor_;

  std::mutex callers_;  ///< Held by the one caller, for a whole job. Guards what follows it.
  bool started_ = false;
  Status lost_;  ///< Set for good once a thread has ended.
  TimePoint last_end_{};
  Nanoseconds usual_gap_ = std::chrono::seconds(1);  ///< Between jobs, a running mean.
  TimePoint last_check_{};                           ///< That those who missed a job are alive.

  /// The job. Written before number_ is (release), read by those who joined it (acquire).
  std::optional<Body> body_;

  std::vector<Seat> seats_;
  std::vector<Entry> entries_;
  alignas(128) std::atomic<std::uint32_t> number_{0};
  std::atomic<bool> spin_{false};        ///< The next job is expected at once. A hint: relaxed.
  std::atomic<bool> stop_{false};        ///< Written before number_.
  std::atomic<std::uint32_t> ready_{0};  ///< Workers that have taken their places.
  Doorbell bell_{};
  alignas(128) std::atomic<bool> failed_{false};  ///< No further item begins. A hint: relaxed.
};

}  // namespace tidegate::offload
