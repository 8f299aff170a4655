#include "backend/work.h"

#include <functional>
#include <string>
#include <utility>

#include <ATen/core/ivalue.h>

#include "backend/duration.h"
#include "backend/error_translation.h"
#include "backend/gil.h"
#include "common/log.h"

namespace tidegate {
namespace {

using c10::ivalue::Future;

// What is left to do for one call once its outcome is known.
struct Completion {
  std::shared_ptr<Operation> operation;
  std::function<void()> end_profiler_event;  // Empty unless a profiler runs.
  c10::intrusive_ptr<Future> future;
  std::vector<at::Tensor> results;

  // User code runs in here (callbacks of the future): what it throws must not reach the thread.
  void operator()() {
    try {
      if (end_profiler_event) end_profiler_event();
      if (operation->status().ok()) {
        future->markCompleted(c10::IValue(std::move(results)));
      } else {
        future->setError(ToException(operation->status()));
      }
    } catch (const std::exception& error) {
      Log(LogLevel::kWarn, "a callback of the future of " + operation->name() + " seq " +
                               std::to_string(operation->sequence()) + " threw: " + error.what());
    } catch (...) {
      Log(LogLevel::kWarn, "a callback of the future of " + operation->name() + " seq " +
                               std::to_string(operation->sequence()) + " threw");
    }
  }
};

}  // namespace

TidegateWork::TidegateWork(const CallKind& kind, std::shared_ptr<Communicator> communicator,
                           std::vector<at::Tensor> results)
    : c10d::Work(communicator->rank(), kind.op_type, kind.title),
      kind_(kind),
      communicator_(std::move(communicator)),
      results_(std::move(results)) {}

void TidegateWork::Start(std::shared_ptr<Operation> operation) {
  operation_ = std::move(operation);
  // The base class fills this in only while a profiler runs.
  if (recordFunctionEndCallback_) Watch();
}

bool TidegateWork::isCompleted() { return operation_->done(); }

bool TidegateWork::isSuccess() const { return operation_->done() && operation_->status().ok(); }

std::exception_ptr TidegateWork::exception() const {
  if (!operation_->done() || operation_->status().ok()) return nullptr;
  return ToException(operation_->status());
}

std::vector<at::Tensor> TidegateWork::result() { return results_; }

bool TidegateWork::wait(std::chrono::milliseconds timeout) {
  const GilRelease released;
  const Status status = operation_->Wait(ToNanoseconds(timeout));
  ThrowPendingSignal();
  if (status.code() == StatusCode::kTimeout && !operation_->done()) {
    ThrowStatus(Status(StatusCode::kTimeout,
                       std::string(kind_.name()) + " seq " +
                           std::to_string(operation_->sequence()) + " of group " +
                           communicator_->group_name() + ", rank " +
                           std::to_string(communicator_->rank()) + ": not done after the " +
                           std::to_string(timeout.count()) +
                           " ms given to Work.wait; it goes on and can be waited for again"));
  }
  // Takes the work off the list of works that torch.compile keeps, also when it failed: nobody else
  // does, and the list holds the tensors.
  synchronize();
  if (!status.ok()) ThrowStatus(status);
  return true;
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

std::uint64_t TidegateWork::getSequencenumber() const { return operation_->sequence(); }

int TidegateWork::sourceRank() const {
  if (operation_->done() && operation_->source() >= 0) return operation_->source();
  const bool receive =
      kind_.op_type == c10d::OpType::RECV || kind_.op_type == c10d::OpType::RECVANYSOURCE;
  ThrowStatus(Status(StatusCode::kInvalidArgument,
                     std::string(kind_.name()) + " seq " + std::to_string(operation_->sequence()) +
                         " of group " + communicator_->group_name() + ", rank " +
                         std::to_string(communicator_->rank()) +
                         (receive ? ": no message has arrived yet; wait for the work first"
                                  : ": only a receive has a source")));
}

void TidegateWork::Watch() {
  future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
  operation_->OnDone(Completion{operation_, std::exchange(recordFunctionEndCallback_, nullptr),
                                future_, results_});
}

}  // namespace tidegate
