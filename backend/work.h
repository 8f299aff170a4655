#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "backend/call_kind.h"
#include "collectives/communicator.h"
#include "collectives/operation.h"

namespace tidegate {

/// The user's handle of one Operation. Thread-safe once started.
///
/// Life: made before the operation is submitted, so that the profiler sees all of it -> Start, once
/// -> any of the methods of c10d::Work. Dropping it early does not stop the operation.
///
/// The completion state of the base class (mutex_, completed_, exception_) is unused: the Operation
/// has it, every virtual that reads it is overridden, and finish() is never called.
class TidegateWork final : public c10d::Work {
 public:
  TidegateWork(const CallKind& kind, std::shared_ptr<Communicator> communicator,
               std::vector<at::Tensor> results);

  void Start(std::shared_ptr<Operation> operation);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  /// kNoTimeout (and anything negative): until the deadline of the operation itself. When `timeout`
  /// passes first, the operation goes on and a later wait may succeed.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  /// Fails the whole group: ranks cannot give up one operation and agree about the next.
  void abort() override;
  /// A list of the results; completed on the callback thread, or here when already done.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override;
  /// Rank in the group whose message a receive got. Throws before that is known and for any other
  /// kind of call.
  int sourceRank() const override;

 private:
  /// Makes the future and ties it, with the end of the profiler's event, to the operation.
  void Watch();

  const CallKind& kind_;
  const std::shared_ptr<Communicator> communicator_;  // Also for its name in messages.
  const std::vector<at::Tensor> results_;
  std::shared_ptr<Operation> operation_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // Guarded by future_mutex_.
};

}  // namespace tidegate
