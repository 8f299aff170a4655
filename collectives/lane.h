#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/admission/gate.h"
#include "collectives/executor/adaptive_wait.h"
#include "collectives/executor/execution.h"
#include "collectives/group_context.h"
#include "collectives/lane_pace.h"
#include "collectives/operation.h"
#include "collectives/prepared_call.h"
#include "collectives/requests.h"
#include "collectives/statistics.h"
#include "common/clock.h"
#include "common/inline_vector.h"
#include "common/ticks.h"

namespace tidegate {

/// One operation on its way through a lane.
struct Task {
  std::shared_ptr<Operation> operation;
  Requests requests;
  InlineVector<PreparedCall, 1> calls;  ///< One a request, run in order.
  bool refusal = false;                 ///< Its only call is to be refused, not run.
  std::size_t next_call = 0;
  bool call_started = false;
  Ticks came = NowInTicks();
  Nanoseconds timeout{};  ///< As DeadlineAfter's.
  /// From LookAtClock on, which is where it first has to queue or to wait for longer than some
  /// polls: most calls are over before.
  TimePoint begun = kNoDeadline;
  TimePoint deadline = kNoDeadline;
  /// Of an all-gather that a gate counts, from its call to its end.
  std::shared_ptr<Ticket> ticket;
  /// Operations of the other lane that must be done first.
  std::vector<std::shared_ptr<Operation>> after;

  /// Finds out `begun` and `deadline`, once. To be called before others see the task, or by whoever
  /// drives it.
  void LookAtClock(const Clock& clock);
};

/// What one round of driving achieved.
struct DriveResult {
  bool progressed = false;
  bool pending = false;              ///< There is more to do, now or when a peer gets on.
  bool deferred = false;             ///< There is something for the other turn.
  bool awaits_peers = false;         ///< Of that, something a peer may do at any moment.
  TimePoint deadline = kNoDeadline;  ///< Earliest deadline among what is pending.

  void Merge(const DriveResult& other);
};

/// A round of driving is two turns: first what others wait for, then all-gathers made ahead of
/// their use, for which nobody waits yet.
enum class Turn { kUrgent, kPrefetched };

using FinishedOperations = std::vector<std::shared_ptr<Operation>>;

/// One of a group's streams of collectives: a queue of tasks that run one after the other, each on
/// the thread of its caller or on the progress thread. Thread-safe; at any time at most one thread
/// drives.
class Lane {
 public:
  Lane(GroupContext& context, int number, const Clock& clock);

  /// Takes `task` for the calling thread, which must then call Run, if nothing is ahead of it.
  /// Nobody else may hold or be given its operation before that is done. REQUIRES, as Queue: no
  /// other thread calls either at the same time.
  bool Take(Task& task);
  /// Queues `task` for Drive.
  void Queue(std::shared_ptr<Task> task);
  /// Runs the task taken, blocking, to its end. Returns true when tasks were queued meanwhile.
  bool Run(Task& task);

  /// Continues the first queued tasks as far as they go without blocking, but for no more than some
  /// steps, so that every lane has its turn again soon: the longest wait of any is a few chunks of
  /// each other lane. In an urgent turn a lane whose first task is prefetched is left alone, with
  /// DriveResult::deferred. Finished operations have been completed and are handed over for
  /// reaping.
  DriveResult Drive(FinishedOperations* finished, Turn turn);

  /// Ends all that is queued, of a group that has failed: behind the call of this very thread it
  /// would stay until a signal handler returns, which may be waiting for it. REQUIRES:
  /// TakenByThisThread().
  void EndQueued(FinishedOperations* finished);

  /// Unfinished operations that touch what `requests` touch, or all if `requests` is null; without
  /// the one that this very thread is running, if any.
  void CollectUnfinished(const Requests* requests,
                         std::vector<std::shared_ptr<Operation>>* operations);
  /// Nothing is queued or being run. Of what is queued sequentially consistent with
  /// Operation::done(): who completes an operation of the other lane and then finds this one idle
  /// need not wake its driver, which looks at what it waits for after it was queued here.
  bool Idle() const { return unfinished_.load(std::memory_order_seq_cst) == 0; }
  /// True on a thread that is in the middle of Run: in a signal handler.
  bool TakenByThisThread() const {
    return taken_by_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

 private:
  bool Advance(Task& task, Status* outcome, int max_steps = 1 << 30);
  bool GiveUp(Task& task, Status* outcome);
  bool TimeOut(Task& task, TimePoint now, Status* outcome);
  bool PeerLeft(Task& task, Status* outcome);
  bool FailWith(Task& task, StatusCode code, int culprit, const std::string& text, Status* outcome);
  void Finish(const Task& task, const Status& outcome);
  bool Naps(const Task& task);
  TimePoint EndOfNap(const Task& task) const;
  static bool Ready(const Task& task);
  bool IsPrefetched() const;
  std::string Describe(const Task& task) const;

  GroupContext& context_;
  const Clock& clock_;
  // Of whoever drives.
  Execution execution_;
  AdaptiveWait wait_;
  std::vector<int> awaited_;
  const std::shared_ptr<CollectiveCounters> counters_;
  SharedMemoryBytes counted_;
  LanePace pace_;
  TimePoint quiet_since_ = kNoDeadline;        ///< See Naps; kNoDeadline: since now, or not asked.
  TimePoint unexplained_since_ = kNoDeadline;  ///< See Disagreement; kNoDeadline: nothing is.

  // Take needs no lock: where nothing is unfinished nobody but its caller writes to any of these.
  std::mutex mutex_;
  std::atomic<std::thread::id> taken_by_{};  ///< Who runs taken_.
  /// Being run by its caller, who keeps it until it is cleared, under mutex_.
  std::atomic<Task*> taken_{nullptr};
  std::deque<std::shared_ptr<Task>> queue_;  // Guarded.
  std::atomic<int> unfinished_{0};           ///< Tasks taken or queued; lowered under mutex_.
};

}  // namespace tidegate
