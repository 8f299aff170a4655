#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "common/function_ref.h"
#include "common/status.h"
#include "offload/threads/thread_plan.h"

namespace tidegate::offload {

class Crew;

inline constexpr std::size_t kMostThreads = 1024;

/// Persistent threads that run one body over many items, again and again.
///
/// The calling thread takes part as thread 0, so that a pool of n threads makes n - 1, at the first
/// Run. They sleep (futex) between jobs, and cost nothing then; only while jobs follow each other
/// within microseconds do they spin for the next one. A thread that the machine does not let run in
/// time misses a job: the others do its items.
///
/// In a forked child a pool has no threads and makes new ones at its first Run there. Thread-safe;
/// several pools may exist.
class ThreadPool {
 public:
  /// A pool of one thread a place, the first for whoever calls Run. REQUIRES: 1 to kMostThreads
  /// places.
  explicit ThreadPool(std::vector<ThreadPlace> places);
  /// Ends the threads and joins them, which takes microseconds. REQUIRES: no Run is going on.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(places_.size()); }
  std::span<const ThreadPlace> places() const { return places_; }

  /// Makes the threads now rather than at the first Run. kResourceExhausted if the system gives no
  /// more; then, as in Run, the pool can be tried again.
  Status Start();

  /// Runs body(item, thread) once for each item in [0, items), in parallel, and returns when all
  /// are done; no thread touches the body afterwards. Each thread owns a run of neighbouring items,
  /// all equally long but for one item, in the order of the threads and the same at each call with
  /// as many items: what it touched first stays in its NUMA node. Who is done early takes single
  /// items from the end of what others still have, of its own NUMA node first; `thread` is who runs
  /// the item, not who owns it.
  ///
  /// One caller at a time: a second one waits. Allocates nothing once there are threads, and locks
  /// nothing per item. A caller that runs on the processor of a pinned thread of its NUMA node
  /// takes that over, and the thread goes to the caller's place, for this and further jobs; a
  /// caller that comes from elsewhere is moved to its place if it may run there. Its affinity mask
  /// stays as it was.
  ///
  /// After a failure no further item begins; those that run are waited for. The result is
  /// - the Status of the failed item with the lowest index. An exception is a kInternal with its
  ///   text (std::bad_alloc: kResourceExhausted);
  /// - kInternal, within 1 s and for good, if a thread has ended (in a body, or between jobs);
  /// - kInvalidArgument for a call from within a body, of this pool or another, and for 2^32 items
  ///   or more.
  Status Run(std::size_t items, FunctionRef<Status(std::size_t item, int thread)> body);

 private:
  Crew& CrewOfThisProcess();

  const std::vector<ThreadPlace> places_;
  /// Of this process, and through it those of its ancestors, which had it when they forked.
  std::atomic<Crew*> crew_;
};

}  // namespace tidegate::offload
