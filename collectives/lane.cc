#include "collectives/lane.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "collectives/interrupt.h"
#include "common/units.h"

namespace tidegate {
namespace {

/// How long to wait for the call that explains why ranks disagree: it is on its way.
constexpr Nanoseconds kPatience = std::chrono::milliseconds(300);
/// Longest sleep of what is held to a rate.
constexpr Nanoseconds kLongestHold = std::chrono::milliseconds(10);
/// An all-gather with a rate polls its peers for so long before it naps.
constexpr Nanoseconds kPollsWithARate = std::chrono::microseconds(60);
/// Naps end when the clock, which is that of all processes, shows a multiple of this.
constexpr Nanoseconds kNap = std::chrono::milliseconds(1);

/// Of the executor, in one turn of a lane. A step moves at most a chunk; a prefetched all-gather's
/// turn is about a millisecond at the most.
constexpr int kUrgentSteps = 128;
/// For somebody who waits, at every turn.
constexpr std::size_t kTasksLookedAt = 64;
constexpr int kPrefetchedSteps = 16;

}  // namespace

void Task::LookAtClock(const Clock& clock) {
  if (begun != kNoDeadline) return;
  begun = clock.Now();
  deadline = DeadlineAfter(begun, timeout);
}

void DriveResult::Merge(const DriveResult& other) {
  progressed = progressed || other.progressed;
  pending = pending || other.pending;
  deferred = deferred || other.deferred;
  awaits_peers = awaits_peers || other.awaits_peers;
  deadline = std::min(deadline, other.deadline);
}

Lane::Lane(GroupContext& context, int number, const Clock& clock)
    : context_(context),
      clock_(clock),
      execution_(context.transport(), number),
      wait_(clock, LimitsOfRanks(context.ranks_per_cpu())),
      counters_(context.statistics().TakeCounters()),
      pace_(context.admission(), LinkClass::kNode, clock) {}

bool Lane::Take(Task& task) {
  // Pairs with the release of who finished the last one, and drove until then.
  if (unfinished_.load(std::memory_order_acquire) != 0 || !Ready(task)) return false;
  taken_by_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  taken_.store(&task, std::memory_order_release);
  // What has been taken waits for nothing: nobody needs to find it for its sake (see Idle).
  unfinished_.store(1, std::memory_order_release);
  return true;
}

void Lane::Queue(std::shared_ptr<Task> task) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(task));
  unfinished_.fetch_add(1, std::memory_order_seq_cst);
}

bool Lane::Run(Task& task) {
  Status outcome;
  wait_.set_limits(LimitsOfRanks(context_.ranks_per_cpu()));
  wait_.Reset();
  quiet_since_ = kNoDeadline;
  std::uint64_t seen = execution_.progress();
  while (!Advance(task, &outcome)) {
    if (execution_.progress() != seen) {
      seen = execution_.progress();
      wait_.Reset();
      quiet_since_ = kNoDeadline;
      if (task.ticket != nullptr) task.ticket->GetsOn();
      continue;
    }
    const bool naps = Naps(task);
    if (!naps && wait_.PollAgain()) continue;
    task.LookAtClock(clock_);
    if (GiveUp(task, &outcome)) break;
    if (Interrupted()) {
      FailWith(task, StatusCode::kAborted, context_.rank(),
               context_.transport().DescribePeer(context_.rank()) +
                   " was interrupted by a signal; see that process's own output, "
                   "restart the job from its last checkpoint",
               &outcome);
      outcome = Status(StatusCode::kInterrupted, outcome.message());
      break;
    }
    if (naps) {
      std::this_thread::sleep_for(EndOfNap(task) - clock_.Now());
      wait_.Reset();
      continue;
    }
    const std::uint32_t ticket = context_.doorbell().Arm();
    const bool done = Advance(task, &outcome);
    if (done || execution_.progress() != seen) {
      context_.doorbell().Disarm();
      if (done) break;
      continue;
    }
    context_.doorbell().Sleep(ticket, std::min(task.deadline, clock_.Now() + context_.max_sleep()));
  }
  Finish(task, outcome);
  task.operation->CompleteUnseen(std::move(outcome));
  const std::lock_guard lock(mutex_);
  taken_.store(nullptr, std::memory_order_relaxed);
  taken_by_.store({}, std::memory_order_relaxed);
  const bool queued = !queue_.empty();
  unfinished_.store(unfinished_.load(std::memory_order_relaxed) - 1, std::memory_order_release);
  return queued;
}

DriveResult Lane::Drive(FinishedOperations* finished, Turn turn) {
  DriveResult result;
  std::uint64_t steps_left = turn == Turn::kUrgent ? kUrgentSteps : kPrefetchedSteps;
  for (;;) {
    std::shared_ptr<Task> task;
    bool is_prefetched = false;
    {
      const std::lock_guard lock(mutex_);
      if (taken_.load(std::memory_order_acquire) != nullptr || queue_.empty()) return result;
      task = queue_.front();
      if (turn == Turn::kUrgent) is_prefetched = IsPrefetched();
    }
    if (is_prefetched) {
      result.pending = result.deferred = true;
      return result;
    }
    Status outcome;
    bool done = false;
    if (Ready(*task) || context_.failed()) {
      const std::uint64_t before = execution_.progress();
      done = Advance(*task, &outcome, static_cast<int>(steps_left));
      const std::uint64_t taken = execution_.progress() - before;
      result.progressed = result.progressed || done || taken > 0;
      steps_left -= std::min(steps_left, taken);
    }
    if (result.progressed) {
      quiet_since_ = kNoDeadline;
      if (task->ticket != nullptr) task->ticket->GetsOn();
    }
    if (!done && !result.progressed) done = GiveUp(*task, &outcome);
    if (!done) {
      result.pending = true;
      const bool naps = Naps(*task);
      result.awaits_peers = Ready(*task) && !naps;
      result.deadline = naps ? EndOfNap(*task) : task->deadline;
      return result;
    }
    result.progressed = true;
    Finish(*task, outcome);
    task->operation->Complete(std::move(outcome));
    finished->push_back(task->operation);
    const std::lock_guard lock(mutex_);
    queue_.pop_front();
    unfinished_.fetch_sub(1, std::memory_order_seq_cst);
    steps_left -= std::min<std::uint64_t>(steps_left, 1);  // Of which some operations have none.
    if (steps_left == 0) {
      result.pending = !queue_.empty();
      return result;
    }
  }
}

void Lane::EndQueued(FinishedOperations* finished) {
  std::deque<std::shared_ptr<Task>> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(queue_);
  }
  for (const std::shared_ptr<Task>& task : ended) {
    Status outcome = context_.FailureOf(Describe(*task));
    Finish(*task, outcome);
    task->operation->Complete(std::move(outcome));
    finished->push_back(task->operation);
  }
  const std::lock_guard lock(mutex_);
  unfinished_.fetch_sub(static_cast<int>(ended.size()), std::memory_order_seq_cst);
}

void Lane::CollectUnfinished(const Requests* requests,
                             std::vector<std::shared_ptr<Operation>>* operations) {
  const auto touches = [&](const Task& task) {
    // The driver may have been preempted between telling the waiter and leaving the queue.
    if (task.operation->done()) return false;
    if (requests == nullptr) return true;
    for (const CollectiveRequest& ours : *requests)
      for (const CollectiveRequest& theirs : task.requests)
        if (Overlaps(ours, theirs)) return true;
    return false;
  };
  const std::lock_guard lock(mutex_);
  const Task* const taken = taken_.load(std::memory_order_acquire);
  if (taken != nullptr && !TakenByThisThread() && touches(*taken))
    operations->push_back(taken->operation);
  for (const std::shared_ptr<Task>& task : queue_)
    if (touches(*task)) operations->push_back(task->operation);
}

/// Whether a task that makes no progress is to sleep by the clock, without polling and not on the
/// doorbell, which peers ring for other calls of this process: what is held to a rate, and after a
/// while an all-gather with a rate that waits for a peer. That one is probably held to its own, and
/// polling for it would take the processor from what the rate is to leave it to.
bool Lane::Naps(const Task& task) {
  if (execution_.held_until() != kNotHeld) {
    quiet_since_ = kNoDeadline;
    return true;
  }
  if (!pace_.has_rate() || task.calls.front().fingerprint.collective != Collective::kAllGather ||
      !Ready(task))
    return false;
  const TimePoint now = clock_.Now();
  if (quiet_since_ == kNoDeadline) quiet_since_ = now;
  if (now - quiet_since_ < kPollsWithARate) return false;
  quiet_since_ = kNoDeadline;  // It polls again then: the peer has woken up at the same time.
  return true;
}

/// Held ones are looked at now and then, since no bell says that their group has failed or that
/// limits have changed. All ranks wake up together: then they go on together, and what they disturb
/// in that time, which needs all ranks as well, is disturbed once and not once a rank.
TimePoint Lane::EndOfNap(const Task& task) const {
  const TimePoint held_until = execution_.held_until();
  const TimePoint now = clock_.Now();
  const TimePoint soonest = held_until == kNotHeld ? now : std::min(held_until, now + kLongestHold);
  const Nanoseconds past = soonest.time_since_epoch() % kNap;
  return std::min(task.deadline, soonest + (kNap - past));
}

/// Whether the first task is an all-gather and nobody waits for it, nor for what is soon after it.
/// REQUIRES: mutex_ is held, and the queue is not empty.
bool Lane::IsPrefetched() const {
  if (queue_.front()->calls.front().fingerprint.collective != Collective::kAllGather) return false;
  const auto count = static_cast<std::ptrdiff_t>(std::min(queue_.size(), kTasksLookedAt));
  return std::none_of(queue_.begin(), queue_.begin() + count,
                      [](const std::shared_ptr<Task>& task) { return task->operation->awaited(); });
}

bool Lane::Ready(const Task& task) {
  return std::all_of(task.after.begin(), task.after.end(),
                     [](const std::shared_ptr<Operation>& operation) { return operation->done(); });
}

/// True when the task is over, with its outcome.
bool Lane::Advance(Task& task, Status* outcome, int max_steps) {
  if (context_.failed()) {
    *outcome = context_.FailureOf(Describe(task));
    return true;
  }
  for (; task.next_call < task.calls.size(); ++task.next_call, task.call_started = false) {
    PreparedCall& call = task.calls[task.next_call];
    if (!task.call_started && (max_steps == 0 || !execution_.MayArrive())) return false;
    if (task.refusal) {
      execution_.Refuse(call.fingerprint);
      continue;
    }
    if (!task.call_started) {
      // What is first in a lane is admitted, being the oldest that is left of it. Should it not be,
      // since limits were set to another gate meanwhile, it passes all the same: what nothing but
      // peers holds back cannot be part of a deadlock.
      if (task.ticket != nullptr) task.ticket->Promote();
      Status started = call.copy_inputs ? MakeInputsPrivate(call) : Status();
      if (started.ok()) {
        Invocation invocation = Bind(call, task.requests[task.next_call]);
        if (call.fingerprint.collective == Collective::kAllGather)
          invocation.pace = pace_.ForNext();
        started = execution_.Start(invocation);
      }
      if (!started.ok())
        return FailWith(
            task, started.code(), context_.rank(),
            context_.transport().DescribePeer(context_.rank()) + ": " + started.message(), outcome);
      task.call_started = true;
    }
    const std::uint64_t before = execution_.progress();
    const Result<Execution::Outcome> advanced = execution_.Advance(max_steps);
    if (!advanced.ok())
      return FailWith(task, advanced.status().code(), execution_.culprit(),
                      advanced.status().message(), outcome);
    if (advanced.value() == Execution::Outcome::kBlocked) return false;
    max_steps -= static_cast<int>(std::min<std::uint64_t>(static_cast<std::uint64_t>(max_steps),
                                                          execution_.progress() - before));
  }
  *outcome = Status();
  return true;
}

/// Looks, after a poll in vain, for reasons to stop waiting. True when the task is over.
bool Lane::GiveUp(Task& task, Status* outcome) {
  const TimePoint now = clock_.Now();
  if (PeerLeft(task, outcome)) return true;
  Disagreement found;
  if (!execution_.FindDisagreement(&found)) {
    unexplained_since_ = kNoDeadline;
  } else {
    unexplained_since_ = std::min(unexplained_since_, now);
    if (found.explained || now - unexplained_since_ >= kPatience)
      return FailWith(task, StatusCode::kMismatch, found.peer, found.mismatch.message(), outcome);
  }
  if (now < task.deadline) {
    execution_.PublishWait();
    return false;
  }
  return TimeOut(task, now, outcome);
}

/// Ranks that wait for a rank that waits for another have the same deadline as that one: whoever
/// comes to it first names the last of that chain.
bool Lane::TimeOut(Task& task, TimePoint now, Status* outcome) {
  execution_.AwaitedPeers(&awaited_);
  std::vector<int> missing;
  execution_.LastAwaited(&missing);
  if (missing.empty()) missing = awaited_;
  std::string text = Describe(task) + " timed out after " + FormatMilliseconds(now - task.begun) +
                     " on rank " + std::to_string(context_.rank());
  if (missing.empty()) {
    text += execution_.held_until() == kNotHeld
                ? "; it waited for an earlier operation"
                : "; it was held to the rate of all-gathers, see tidegate.stats()";
  } else {
    text += "; missing: " + context_.DescribePeers(missing);
    std::erase_if(awaited_, [&](int peer) {
      return std::find(missing.begin(), missing.end(), peer) != missing.end();
    });
    if (!awaited_.empty()) text += ", awaited by " + context_.DescribePeers(awaited_);
  }
  text += "; see what they are doing, or give the group a timeout longer than " +
          FormatMilliseconds(task.deadline - task.begun);
  return FailWith(task, StatusCode::kTimeout, missing.empty() ? -1 : missing.front(), text,
                  outcome);
}

bool Lane::PeerLeft(Task& task, Status* outcome) {
  execution_.AwaitedPeers(&awaited_);
  const auto left = std::find_if(awaited_.begin(), awaited_.end(),
                                 [&](int peer) { return context_.transport().HasLeft(peer); });
  if (left == awaited_.end()) return false;
  // It may have done its part just before it left.
  const int peer = *left;
  execution_.AwaitedPeers(&awaited_);
  if (std::find(awaited_.begin(), awaited_.end(), peer) == awaited_.end()) return false;
  return FailWith(task, StatusCode::kPeerLost, peer,
                  context_.transport().DescribePeer(peer) + " left the group before " +
                      Describe(task) +
                      "; it exited or destroyed the group while others still use it: see that "
                      "process's own output",
                  outcome);
}

bool Lane::FailWith(Task& task, StatusCode code, int culprit, const std::string& text,
                    Status* outcome) {
  context_.Fail(code, culprit, text);
  *outcome = context_.FailureOf(Describe(task));
  return true;
}

/// Before others learn that it is over: who then makes the next call finds room.
void Lane::Finish(const Task& task, const Status& outcome) {
  if (task.ticket != nullptr) task.ticket->Leave();
  std::uint64_t bytes = 0;
  for (const PreparedCall& call : task.calls) bytes += call.output_bytes;
  const SharedMemoryBytes read = {.bytes = execution_.bytes_from_peers(),
                                  .resident = execution_.resident_bytes(),
                                  .single_copy = execution_.single_copy_bytes()};
  counters_->Count(task.calls.front().fingerprint.collective,
                   {.calls = task.calls.size(),
                    .bytes = bytes,
                    .duration = TicksSince(task.came),
                    .failed = !outcome.ok() || task.refusal,
                    .read = {.bytes = read.bytes - counted_.bytes,
                             .resident = read.resident - counted_.resident,
                             .single_copy = read.single_copy - counted_.single_copy}});
  counted_ = read;
}

std::string Lane::Describe(const Task& task) const {
  const std::size_t call = std::min(task.next_call, task.calls.size() - 1);
  return tidegate::Describe(task.calls[call].fingerprint);
}

}  // namespace tidegate
