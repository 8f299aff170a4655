#include "collectives/operation.h"

#include <algorithm>
#include <utility>

#include "collectives/communicator.h"
#include "collectives/interrupt.h"
#include "collectives/process_runtime.h"
#include "collectives/reaper.h"
#include "common/check.h"
#include "common/fork_generation.h"
#include "common/futex.h"
#include "common/units.h"

namespace tidegate {
namespace {

constexpr int kSpins = 200;
/// Longest sleep between two looks for an interrupt.
constexpr Nanoseconds kSlice = std::chrono::milliseconds(100);

}  // namespace

Operation::Operation(std::string_view name, std::uint64_t sequence)
    : name_(name), sequence_(sequence), generation_(ForkGeneration()) {}

void Operation::Hold(std::shared_ptr<void> keepalive, std::weak_ptr<Communicator> group) {
  holds_ = true;
  keepalive_ = std::move(keepalive);
  group_ = std::move(group);
}

std::string Operation::Label() const {
  return std::string(name_) + " seq " + std::to_string(sequence_);
}

Status Operation::Wait(Nanoseconds timeout) {
  if (!done()) TIDEGATE_RETURN_IF_ERROR(AwaitDone(timeout));
  DropBuffers();
  return status_;
}

Status Operation::AwaitDone(Nanoseconds timeout) {
  const Clock& clock = SteadyClock();
  const TimePoint deadline = DeadlineAfter(clock.Now(), timeout);
  for (int i = 0; i < kSpins && !done(); ++i) std::atomic_signal_fence(std::memory_order_acquire);
  // Its locks may have been held by another thread when the process was forked: none is taken here.
  if (!done() && generation_ != ForkGeneration())
    return Status(StatusCode::kAborted,
                  Label() +
                      " belongs to the process that this one was forked from; wait for it "
                      "there");
  if (!done() && ticket_ != nullptr) ticket_->Promote();
  while (!done()) {
    const TimePoint now = clock.Now();
    if (now >= deadline)
      return Status(StatusCode::kTimeout, "waited " + FormatMilliseconds(timeout) + " for " +
                                              Label() +
                                              "; it is still running and may be waited for again");
    if (Interrupted()) {
      if (const std::shared_ptr<Communicator> group = group_.lock())
        group->Abort("interrupted by a signal while waiting for " + std::string(name_));
      return Status(StatusCode::kInterrupted,
                    "interrupted while waiting for " + std::string(name_));
    }
    Want();
    FutexWait(state_, kAwaited, std::min(deadline, now + kSlice));
  }
  return Status();
}

void Operation::Want() {
  std::uint32_t pending = kPending;
  state_.compare_exchange_strong(pending, kAwaited, std::memory_order_relaxed);
}

void Operation::OnDone(const std::shared_ptr<Operation>& operation,
                       std::function<void()> callback) {
  {
    const std::lock_guard lock(operation->mutex_);
    operation->callback_ = std::move(callback);
    operation->callback_set_by_ = Reaper::CallbackHere();
    if (!operation->handed_over_) return;
  }
  if (operation->generation_ == ForkGeneration() && ProcessRuntime::ReapLate(operation)) return;
  operation->RunCallback();
}

void Operation::Complete(Status status) {
  status_ = std::move(status);
  // Sequentially consistent: see Lane::Idle.
  if (state_.exchange(kDone, std::memory_order_seq_cst) == kAwaited) FutexWakeAll(state_);
}

void Operation::CompleteUnseen(Status status) {
  TIDEGATE_CHECK(!holds_);
  handed_over_ = true;
  Complete(std::move(status));
}

bool Operation::HandOver() {
  const std::lock_guard lock(mutex_);
  handed_over_ = true;
  return callback_ != nullptr;
}

void Operation::Reap() {
  static_cast<void>(HandOver());
  RunCallback();
  DropBuffers();
}

void Operation::RunCallback() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    callback = std::move(callback_);
    callback_ = nullptr;
  }
  if (callback) callback();
}

void Operation::DropBuffers() {
  if (!holds_) return;
  const std::lock_guard lock(keepalive_mutex_);
  keepalive_.reset();
}

}  // namespace tidegate
