#include "backend/work.h"

#include <string>
#include <utility>

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include "backend/coalescing.h"
#include "backend/duration.h"
#include "backend/error_translation.h"
#include "backend/gil.h"
#include "backend/profiling.h"
#include "collectives/reaper.h"
#include "common/log.h"

namespace tidegate {

namespace {

using c10::ivalue::Future;

// What is left to do for one call once its outcome is known.
struct Completion {
  std::shared_ptr<Operation> operation;
  std::shared_ptr<WorkRecord> record;  // Null unless a profiler runs.
  c10::intrusive_ptr<Future> future;
  std::vector<at::Tensor> results;

  // User code runs in here (callbacks of the future): what it throws must not reach the thread.
  void operator()() {
    try {
      if (record) record->End();
      if (operation->status().ok()) {
        future->markCompleted(c10::IValue(std::move(results)));
      } else {
        future->setError(ToException(operation->status()));
      }
    } catch (const std::exception& error) {
      Log(LogLevel::kWarn,
          "a callback of the future of " + operation->Label() + " threw: " + error.what());
    } catch (...) {
      Log(LogLevel::kWarn, "a callback of the future of " + operation->Label() + " threw");
    }
  }
};

c10d::WorkResult ResultOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return c10d::WorkResult::SUCCESS;
    case StatusCode::kTimeout:
      return c10d::WorkResult::TIMEOUT;
    default:
      return c10d::WorkResult::COMM_ERROR;
  }
}

}  // namespace

TidegateWork::TidegateWork(const CallKind& kind, std::shared_ptr<Communicator> communicator,
                           Call call)
    : c10d::Work(communicator->rank(), kind.op_type),
      kind_(kind),
      communicator_(std::move(communicator)),
      call_(std::move(call)) {}

void TidegateWork::Start(std::shared_ptr<Operation> operation) {
  operation_ = std::move(operation);
  if (call_.record != nullptr) Watch();
}

bool TidegateWork::isCompleted() { return operation_->done(); }

bool TidegateWork::isSuccess() const { return operation_->done() && operation_->status().ok(); }

std::exception_ptr TidegateWork::exception() const {
  if (!operation_->done() || operation_->status().ok()) return nullptr;
  return ToException(operation_->status());
}

std::vector<at::Tensor> TidegateWork::result() { return call_.results; }

bool TidegateWork::wait(std::chrono::milliseconds timeout) {
  if (call_.window != nullptr && call_.window->OpenHere()) return true;
  const GilRelease released;
  CommsRecord record;
  if (record.active() && call_.async) {
    record.BeginWait(communicator_->group_name(), rank_,
                     static_cast<std::int64_t>(operation_->sequence()), kind_.IsTransfer());
  }
  const Status status = operation_->Wait(ToNanoseconds(timeout));
  if (call_.record != nullptr && operation_->done()) call_.record->End();
  ThrowPendingSignal();
  if (status.code() == StatusCode::kTimeout && !operation_->done()) {
    ThrowStatus(Status(StatusCode::kTimeout,
                       Describe() + ": not done after the " + std::to_string(timeout.count()) +
                           " ms given to Work.wait; it goes on and can be waited for again"));
  }
  // Takes the work off the list of works that torch.compile keeps, also when it failed: nobody else
  // does, and the list holds the tensors.
  synchronize();
  if (!status.ok()) ThrowStatus(status);
  return true;
}

void TidegateWork::blockCurrentStream() {
  C10_THROW_ERROR(NotImplementedError,
                  Describe() + ": a cpu has no stream that could be blocked; call wait()");
}

void TidegateWork::abort() {
  communicator_->Abort("Work.abort() was called for " + std::string(kind_.name()) + " seq " +
                       std::to_string(operation_->sequence()));
}

c10::intrusive_ptr<Future> TidegateWork::getFuture() {
  const std::lock_guard lock(future_mutex_);
  if (!future_) Watch();
  return future_;
}

c10::intrusive_ptr<Future> TidegateWork::getFutureResult() {
  return getFuture()->then(
      [operation = operation_](Future&) {
        return c10::IValue(static_cast<std::int64_t>(ResultOf(operation->status())));
      },
      c10::IntType::get());
}

float TidegateWork::getDuration() const {
  C10_THROW_ERROR(NotImplementedError,
                  Describe() + ": no duration is kept; see torch.profiler or tidegate.stats()");
}

std::uint64_t TidegateWork::getSequencenumber() const { return operation_->sequence(); }

int TidegateWork::sourceRank() const {
  if (operation_->done() && operation_->source() >= 0) return operation_->source();
  const bool receive =
      kind_.op_type == c10d::OpType::RECV || kind_.op_type == c10d::OpType::RECVANYSOURCE;
  const bool in_window = call_.window != nullptr && call_.window->OpenHere();
  ThrowStatus(Status(
      StatusCode::kInvalidArgument,
      Describe() + (!receive ? ": only a receive has a source"
                    : in_window
                        ? ": between startCoalescing and endCoalescing nothing waits for the "
                          "message; call irecv there, and ask for its source afterwards"
                        : ": no message has arrived yet; wait for the work first")));
}

std::chrono::milliseconds TidegateWork::getTimeout() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(call_.timeout);
}

std::string TidegateWork::Describe() const {
  return std::string(kind_.name()) + " seq " + std::to_string(operation_->sequence()) +
         " of group " + communicator_->group_name() + ", rank " +
         std::to_string(communicator_->rank());
}

void TidegateWork::Watch() {
  future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
  // The first of its callbacks: whoever waits for the future is awake by then, and those of the
  // user come in their turn.
  future_->addCallback([](Future&) { Reaper::AwaitTurn(); });
  Operation::OnDone(operation_, Completion{operation_, call_.record, future_, call_.results});
}

}  // namespace tidegate
