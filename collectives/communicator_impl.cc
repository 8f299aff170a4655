#include "collectives/communicator_impl.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "collectives/interrupt.h"
#include "collectives/process_runtime.h"
#include "common/fork_generation.h"
#include "common/inline_vector.h"
#include "common/recycled.h"
#include "common/units.h"

namespace tidegate {
namespace {

/// Reductions go one way, everything else the other: an all-gather and a reduce-scatter of one
/// group make progress side by side.
constexpr int kOtherLane = 0;
constexpr int kReductionLane = 1;
int LaneOf(Collective collective) { return Reduces(collective) ? kReductionLane : kOtherLane; }

/// From one look for signals to the next, while another thread joins the group.
constexpr Nanoseconds kAttachSlice = std::chrono::milliseconds(100);

}  // namespace

CommunicatorImpl::Attached::Attached(std::string name, Attachment attachment,
                                     std::shared_ptr<GroupStatistics> statistics,
                                     std::shared_ptr<GroupAdmission> admission)
    : context(std::move(name), std::move(attachment), std::move(statistics), std::move(admission)),
      lanes{Lane(context, 0, SteadyClock()), Lane(context, 1, SteadyClock())},
      point_to_point(context, SteadyClock()),
      calls(context.plans(), context.rank(), context.transport().stage_bytes()) {
  static_assert(kLanes == 2);
}

std::shared_ptr<CommunicatorImpl> CommunicatorImpl::Make(CommunicatorOptions options,
                                                         Membership membership) {
  const std::string stats_file = options.config.stats_file;
  std::shared_ptr<CommunicatorImpl> communicator(
      new CommunicatorImpl(std::move(options), std::move(membership)));
  ProcessRuntime::Get().Register(communicator, stats_file);
  return communicator;
}

CommunicatorImpl::CommunicatorImpl(CommunicatorOptions options, Membership membership)
    : options_(std::move(options)),
      generation_(ForkGeneration()),
      statistics_(StatisticsRegistry::Process().Group(options_.group_name, options_.global_ranks)),
      timeout_ns_(options_.timeout.count()),
      membership_(std::move(membership)) {
  statistics_->set_admission(admission_);
  if (options_.limits) admission_->SetLimits(*options_.limits);
}

CommunicatorImpl::~CommunicatorImpl() {
  // Nothing is in flight: the progress engine holds what is. In a forked process the memory belongs
  // to the parent's rank, which has not left.
  if (attached_ != nullptr && generation_ == ForkGeneration())
    attached_->context.transport().PublishLeft();
}

Status CommunicatorImpl::Usable() const {
  if (generation_ != ForkGeneration())
    return Status(StatusCode::kAborted,
                  "this process was forked after group " + options_.group_name +
                      " was made, which only works in the process that made it; make the group "
                      "after the fork, or start workers by spawn");
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (closed_)
    return Status(StatusCode::kAborted,
                  "group " + options_.group_name + " was shut down on this rank; make a new group");
  return Status();
}

/// Joins the group if need be. On success `lock` holds submit_mutex_.
Status CommunicatorImpl::Enter(FunctionRef<TimePoint()> deadline,
                               std::unique_lock<std::mutex>* lock,
                               std::shared_ptr<Attached>* group) {
  // Its locks may have been held by another thread when the process was forked.
  if (generation_ != ForkGeneration()) return Usable();
  *lock = std::unique_lock(submit_mutex_);
  *group = ready_;
  if (*group == nullptr) {
    lock->unlock();
    TIDEGATE_RETURN_IF_ERROR(Usable());
    Result<std::shared_ptr<Attached>> joined = EnsureAttached(deadline());
    if (!joined.ok()) return joined.status();
    lock->lock();
    // It may have been shut down meanwhile, under this lock.
    TIDEGATE_RETURN_IF_ERROR(Usable());
    *group = ready_ = std::move(joined).value();
  }
  for (const Lane& lane : (*group)->lanes)
    if (!lane.Idle() && lane.TakenByThisThread())
      return Status(StatusCode::kAborted,
                    "called from a signal handler that interrupts another operation of the same "
                    "group on the same thread; set a flag there and act on it later");
  return Status();
}

std::shared_ptr<CommunicatorImpl::Attached> CommunicatorImpl::attached() const {
  const std::lock_guard lock(mutex_);
  return attached_;
}

/// Ok: the group is attached, or it is on this thread to attach (attaching_). While another one
/// does, this one heeds its own deadline and its own signals: whoever gives up fails the group, as
/// in any other wait.
Status CommunicatorImpl::AwaitTurnToAttach(TimePoint deadline) {
  const TimePoint begun = SteadyClock().Now();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (attaching_) attached_or_not_.wait_for(lock, kAttachSlice);
      if (!attaching_) {
        const bool usable = failure_.ok() && !closed_;
        attaching_ = usable && attached_ == nullptr;
        if (usable) return Status();
      }
    }
    TIDEGATE_RETURN_IF_ERROR(Usable());
    constexpr char kWhat[] = "while another thread was joining the group";
    if (Interrupted()) {
      Abort(std::string("interrupted by a signal ") + kWhat);
      return Status(StatusCode::kInterrupted, std::string("interrupted ") + kWhat);
    }
    const TimePoint now = SteadyClock().Now();
    if (now < deadline) continue;
    Abort(std::string("a call timed out ") + kWhat);
    return Status(StatusCode::kTimeout, "timed out after " + FormatMilliseconds(now - begun) + " " +
                                            kWhat + "; see what the other ranks are doing");
  }
}

Result<std::shared_ptr<CommunicatorImpl::Attached>> CommunicatorImpl::EnsureAttached(
    TimePoint deadline) {
  if (std::shared_ptr<Attached> ready = attached()) return ready;
  if (attaching_by_.load(std::memory_order_relaxed) == std::this_thread::get_id())
    return Status(StatusCode::kAborted,
                  "called from a signal handler that interrupts the group's first operation");
  TIDEGATE_RETURN_IF_ERROR(AwaitTurnToAttach(deadline));
  if (std::shared_ptr<Attached> ready = attached()) return ready;
  attaching_by_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  const auto attach = [&]() -> Result<Attachment> {
    try {
      return membership_.attach(deadline, cancelled_);
    } catch (const std::exception& error) {
      return Status(StatusCode::kInternal, error.what());
    }
  };
  Result<Attachment> attachment = attach();
  attaching_by_.store(std::thread::id(), std::memory_order_relaxed);
  return FinishAttaching(std::move(attachment));
}

Result<std::shared_ptr<CommunicatorImpl::Attached>> CommunicatorImpl::FinishAttaching(
    Result<Attachment> attachment) {
  const Status outcome = attachment.status();
  std::shared_ptr<Attached> fresh;
  if (outcome.ok())
    fresh = std::make_shared<Attached>(options_.group_name, std::move(attachment).value(),
                                       statistics_, admission_);
  Status failure;
  {
    const std::lock_guard lock(mutex_);
    attaching_ = false;
    attached_or_not_.notify_all();
    if (failure_.ok() && !outcome.ok() && !closed_)
      failure_ = Status(outcome.code(), "rank " + std::to_string(rank()) + " cannot join group " +
                                            options_.group_name + " [" + std::to_string(ranks()) +
                                            " ranks]: " + outcome.message());
    if (failure_.ok() && !closed_) {
      attached_ = fresh;
      return fresh;
    }
    failure = failure_;
    declined_ = true;
  }
  // Failed, aborted or shut down meanwhile: the others are told here, in whatever way is open.
  if (fresh != nullptr) {
    if (!failure.ok()) fresh->context.Fail(failure.code(), rank(), failure.message());
    fresh->context.transport().PublishLeft();
  } else if (membership_.decline) {
    membership_.decline(failure.ok() || outcome.ok() ? failure : outcome);
  }
  return failure.ok() ? Usable() : failure;
}

Nanoseconds CommunicatorImpl::TimeoutFor(const SubmitOptions& options) const {
  return options.timeout.count() > 0 ? options.timeout
                                     : Nanoseconds(timeout_ns_.load(std::memory_order_relaxed));
}

std::shared_ptr<Operation> CommunicatorImpl::FailedOperation(std::string_view name,
                                                             std::uint64_t sequence,
                                                             const Status& status) {
  std::shared_ptr<Operation> operation = MakeRecycled<Operation>(name, sequence);
  operation->CompleteUnseen(
      Status(status.code(), std::string(name) + " seq " + std::to_string(sequence) + " in group " +
                                options_.group_name + " on rank " + std::to_string(rank()) + ": " +
                                status.message()));
  return operation;
}

void CommunicatorImpl::AddDependencies(Lane& other, Task* task) {
  const bool barrier = task->requests.front().collective == Collective::kBarrier;
  if (other.Idle()) return;
  other.CollectUnfinished(barrier ? nullptr : &task->requests, &task->after);
  for (const std::shared_ptr<Operation>& earlier : task->after) earlier->Want();
}

std::shared_ptr<Operation> CommunicatorImpl::Submit(Requests requests, SubmitOptions options) {
  TIDEGATE_CHECK(!requests.empty());
  const Collective collective = requests.front().collective;
  const std::string_view name = NameOf(collective);
  for (const CollectiveRequest& request : requests) {
    if (Status checked = CheckRequest(request, rank(), ranks()); !checked.ok()) {
      if (Status usable = Usable(); !usable.ok())
        return FailedOperation(name, sequence() + 1, usable);
      Refuse(collective, checked.message());
      return FailedOperation(name, sequence(), checked);
    }
  }
  // Only what may have to queue is shared with another thread. `own` is left as it comes: making it
  // where it is needed alone, as by optional::emplace, would clear all of it first (30 ns).
  std::shared_ptr<Task> queued = options.async ? MakeRecycled<Task>() : nullptr;
  Task own;
  Task& task = options.async ? *queued : own;
  task.timeout = TimeoutFor(options);
  // Others see what may have to queue.
  if (options.async) task.LookAtClock(SteadyClock());
  task.requests = std::move(requests);
  const bool counted = collective == Collective::kAllGather;
  if (counted) WaitForRoom(&task, options);
  const auto deadline = [&task] {
    task.LookAtClock(SteadyClock());
    return task.deadline;
  };
  std::shared_ptr<Attached> group;
  std::unique_lock<std::mutex> lock;
  if (Status entered = Enter(deadline, &lock, &group); !entered.ok())
    return FailedOperation(name, sequence() + 1, entered);
  const std::uint64_t first = sequence() + 1;
  if (Status made = group->calls.Make(task.requests, first, &task.calls); !made.ok()) {
    // Ranks that have a plan wait for this one.
    lock.unlock();
    Refuse(collective, made.message());
    return FailedOperation(name, sequence(), made);
  }
  sequence_.store(first - 1 + task.calls.size(), std::memory_order_relaxed);
  task.operation = MakeRecycled<Operation>(name, first);
  const auto number = static_cast<std::size_t>(LaneOf(collective));
  Lane& lane = group->lanes[number];
  Lane& other = group->lanes[1 - number];
  AddDependencies(other, &task);
  // In the order of the lane.
  if (counted && task.ticket == nullptr)
    task.ticket = admission_->Come(OutputBytes(task.requests), !options.async);
  if (!options.async && lane.Take(task)) {
    lock.unlock();
    // An operation of the other lane may have waited for this one's buffers.
    const bool others_queued = lane.Run(task);
    if (others_queued || !other.Idle()) ProcessRuntime::Get().engine()->Notify(shared_from_this());
    return std::move(task.operation);
  }
  task.LookAtClock(SteadyClock());
  if (queued == nullptr) queued = MakeRecycled<Task>(std::move(task));
  std::shared_ptr<Operation> operation = queued->operation;
  operation->Hold(std::move(options.keepalive), weak_from_this());
  operation->set_ticket(queued->ticket);
  lane.Queue(std::move(queued));
  lock.unlock();
  ProcessRuntime::Get().engine()->Notify(shared_from_this());
  if (!options.async) static_cast<void>(operation->Wait(Nanoseconds(0)));
  return operation;
}

void CommunicatorImpl::Refuse(Collective collective, const std::string& reason) {
  auto task = MakeRecycled<Task>();
  task->timeout = TimeoutFor({});
  task->LookAtClock(SteadyClock());
  task->refusal = true;
  PreparedCall call;
  call.fingerprint.collective = collective;
  {
    std::shared_ptr<Attached> group;
    std::unique_lock<std::mutex> lock;
    if (!Enter([&task] { return task->deadline; }, &lock, &group).ok()) return;
    call.fingerprint.sequence = sequence() + 1;
    sequence_.store(call.fingerprint.sequence, std::memory_order_relaxed);
    task->operation = MakeRecycled<Operation>(NameOf(collective), call.fingerprint.sequence);
    task->calls.push_back(std::move(call));
    group->lanes[static_cast<std::size_t>(LaneOf(collective))].Queue(std::move(task));
  }
  if (LogEnabled(LogLevel::kInfo))
    Log(LogLevel::kInfo, "refused " + std::string(NameOf(collective)) + " in group " +
                             options_.group_name + ": " + reason);
  ProcessRuntime::Get().engine()->Notify(shared_from_this());
}

void CommunicatorImpl::Abort(const std::string& reason) {
  if (generation_ != ForkGeneration()) return;
  const std::string who = "rank " + std::to_string(rank());
  std::shared_ptr<Attached> group;
  Status failure;
  bool decline = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ && attached_ == nullptr) return;
    group = attached_;
    cancelled_ = true;
    if (group == nullptr && failure_.ok())
      failure_ = Status(StatusCode::kAborted, who + " aborted group " + options_.group_name + ": " +
                                                  reason + "; make a new group to go on");
    failure = failure_;
    decline = group == nullptr && !attaching_ && !std::exchange(declined_, true);
  }
  if (decline && membership_.decline) membership_.decline(failure);
  if (group == nullptr) return;
  group->context.Fail(StatusCode::kAborted, rank(),
                      group->context.transport().DescribePeer(rank()) +
                          " aborted the group: " + reason + "; make a new group to go on");
  ProcessRuntime::Get().engine()->Notify(shared_from_this());
}

std::vector<std::shared_ptr<Operation>> CommunicatorImpl::Unfinished(Attached& attached) {
  std::vector<std::shared_ptr<Operation>> operations;
  for (Lane& lane : attached.lanes) lane.CollectUnfinished(nullptr, &operations);
  const std::lock_guard lock(submit_mutex_);
  for (const std::shared_ptr<Operation>& operation : transfers_)
    if (!operation->done()) operations.push_back(operation);
  return operations;
}

void CommunicatorImpl::Shutdown() {
  if (generation_ != ForkGeneration()) return;
  std::shared_ptr<Attached> group;
  bool decline = false;
  {
    // Whatever is queued from now on has seen that the group is closed.
    const std::lock_guard submit_lock(submit_mutex_);
    const std::lock_guard lock(mutex_);
    closed_ = true;
    cancelled_ = true;
    ready_ = nullptr;
    group = attached_;
    decline = group == nullptr && !attaching_ && !std::exchange(declined_, true);
  }
  if (decline && membership_.decline) membership_.decline(Status());
  if (group == nullptr) return;
  Drain(*group);
  group->context.LeaveLastWord();
  const std::lock_guard lock(mutex_);
  if (attached_ == nullptr) return;  // Another thread was faster.
  if (failure_.ok() && group->context.failed())
    failure_ = group->context.FailureOf("the last operation");
  group->context.transport().PublishLeft();
  attached_ = nullptr;
  declined_ = true;
}

void CommunicatorImpl::Drain(Attached& group) {
  const auto give_up = [&] {
    group.context.Fail(StatusCode::kAborted, rank(),
                       group.context.transport().DescribePeer(rank()) +
                           " shut the group down while operations were in flight; wait for them "
                           "before destroying the group or leaving the program");
    ProcessRuntime::Get().engine()->Notify(shared_from_this());
  };
  // In a signal handler that interrupts an operation of this very thread: that one cannot finish.
  for (Lane& lane : group.lanes) {
    if (!lane.TakenByThisThread()) continue;
    give_up();
    FinishedOperations ended;
    lane.EndQueued(&ended);
    ProcessRuntime::Get().engine()->reaper().Add(&ended);
  }
  const Clock& clock = SteadyClock();
  // Not DeadlineAfter, for which zero means no deadline: here it means not to wait at all.
  const TimePoint deadline = clock.Now() + options_.config.shutdown_timeout;
  for (const std::shared_ptr<Operation>& operation : Unfinished(group)) {
    const Nanoseconds left = deadline - clock.Now();
    if (left.count() > 0) static_cast<void>(operation->Wait(left));
    if (operation->done()) continue;
    give_up();
    while (!operation->done()) static_cast<void>(operation->Wait(Nanoseconds(0)));
  }
}

Status CommunicatorImpl::health() const {
  if (Status usable = Usable(); !usable.ok()) return usable;
  const std::shared_ptr<Attached> group = attached();
  if (group == nullptr || !group->context.failed()) return Status();
  return group->context.FailureOf("the last operation");
}

Status CommunicatorImpl::failure() const {
  if (generation_ == ForkGeneration()) {
    const std::lock_guard lock(mutex_);
    if (closed_ && failure_.ok() && attached_ == nullptr) return Status();
  }
  return health();
}

bool CommunicatorImpl::HasPeerLeft() const {
  const std::shared_ptr<Attached> group = attached();
  if (group == nullptr) return false;
  for (int peer = 0; peer < ranks(); ++peer)
    if (peer != rank() && group->context.transport().HasLeft(peer)) return true;
  return false;
}

DriveResult CommunicatorImpl::Drive(FinishedOperations* finished, Turn turn) {
  DriveResult result;
  const std::shared_ptr<Attached> group = attached();
  if (group == nullptr) return result;
  if (turn == Turn::kPrefetched) return group->lanes[kOtherLane].Drive(finished, turn);
  // Reductions first: they free memory.
  for (const int lane : {kReductionLane, kOtherLane})
    result.Merge(group->lanes[static_cast<std::size_t>(lane)].Drive(finished, turn));
  result.Merge(group->point_to_point.Drive(finished));
  return result;
}

Nanoseconds CommunicatorImpl::max_sleep() const {
  const std::shared_ptr<Attached> group = attached();
  return group == nullptr ? Nanoseconds(std::chrono::milliseconds(1)) : group->context.max_sleep();
}

std::shared_ptr<Doorbell> CommunicatorImpl::doorbell() const {
  const std::shared_ptr<Attached> group = attached();
  // A rank alone has no peer that would ring.
  return group == nullptr || ranks() == 1 ? nullptr : group->context.shared_doorbell();
}

}  // namespace tidegate
