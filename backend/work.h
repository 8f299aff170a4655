#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "backend/call_kind.h"
#include "collectives/communicator.h"
#include "collectives/operation.h"

namespace tidegate {

class CoalescingWindow;
class WorkRecord;

/// The user's handle of one Operation. Thread-safe once started.
///
/// Life: made before the operation is submitted, so that the profiler sees all of it -> Start, once
/// -> any of the methods of c10d::Work. Dropping it early does not stop the operation.
///
/// The completion state of the base class (mutex_, completed_, exception_) is unused: the Operation
/// has it, every virtual that reads it is overridden, and finish() is never called.
class TidegateWork final : public c10d::Work {
 public:
  struct Call {
    std::vector<at::Tensor> results;
    Nanoseconds timeout{0};  ///< Of the operation.
    bool async = true;
    /// The window that it was issued in; null outside of one.
    std::shared_ptr<const CoalescingWindow> window = nullptr;
    std::shared_ptr<WorkRecord> record = nullptr;  ///< Null unless a profiler runs.
  };

  TidegateWork(const CallKind& kind, std::shared_ptr<Communicator> communicator, Call call);

  void Start(std::shared_ptr<Operation> operation);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  /// kNoTimeout (and anything negative): until the deadline of the operation itself. When `timeout`
  /// passes first, the operation goes on and a later wait may succeed. In the window that the
  /// operation was issued in, on the window's thread: returns at once, for what the peers need to
  /// come to it may not have been issued yet; the wait that counts is that for the whole window.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  /// Refused: a cpu has no stream that could be blocked.
  void blockCurrentStream() override;
  /// Fails the whole group: ranks cannot give up one operation and agree about the next.
  void abort() override;
  /// A list of the results; completed on the callback thread, or here when already done.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// A c10d::WorkResult as an integer; never an error.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// Refused: operations are timed by the profiler and by tidegate.stats().
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;
  /// Rank in the group whose message a receive got. Throws before that is known and for any other
  /// kind of call.
  int sourceRank() const override;
  /// Overrides the method that c10d has from 2.14 on; `override` would refuse the older ones.
  std::chrono::milliseconds getTimeout() const;  // NOLINT

 private:
  /// Makes the future and ties it, with the end of the profiler's event, to the operation.
  void Watch();
  /// "all_reduce seq 3 of group 0, rank 1".
  std::string Describe() const;

  const CallKind& kind_;
  const std::shared_ptr<Communicator> communicator_;  // Also for its name in messages.
  const Call call_;
  std::shared_ptr<Operation> operation_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // Guarded by future_mutex_.
};

}  // namespace tidegate
