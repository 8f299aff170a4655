#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "collectives/admission/admission.h"
#include "collectives/call_book.h"
#include "collectives/communicator.h"
#include "collectives/group_context.h"
#include "collectives/lane.h"
#include "collectives/point_to_point.h"
#include "collectives/progress_engine.h"
#include "collectives/statistics.h"
#include "common/function_ref.h"

namespace tidegate {

/// How a rank joins its group's memory.
struct Membership {
  /// Joins, at the latest by the deadline; gives up soon after `cancelled` has become true.
  std::function<Result<Attachment>(TimePoint deadline, const std::atomic<bool>& cancelled)> attach;
  /// Tells the others that this rank will not join: it left (`reason` ok), or the group fails with
  /// that reason. Null: nobody to tell.
  std::function<void(const Status& reason)> decline = nullptr;
};

/// The Communicator over any attachment; see communicator.h.
class CommunicatorImpl final : public Communicator,
                               public Drivable,
                               public std::enable_shared_from_this<CommunicatorImpl> {
 public:
  /// `membership` is used once: to join at the first operation, or to decline without one. For
  /// Communicator::Create and tests.
  static std::shared_ptr<CommunicatorImpl> Make(CommunicatorOptions options, Membership membership);
  ~CommunicatorImpl() override;

  std::shared_ptr<Operation> Submit(Requests requests, SubmitOptions options) override;
  void Refuse(Collective collective, const std::string& reason) override;
  std::shared_ptr<Operation> Send(Block data, DataType dtype, int peer, std::int64_t tag,
                                  SubmitOptions options) override;
  std::shared_ptr<Operation> Receive(Block data, DataType dtype, int peer, std::int64_t tag,
                                     SubmitOptions options) override;
  Result<std::shared_ptr<std::byte>> Allocate(std::size_t bytes) override;
  void Abort(const std::string& reason) override;
  void Shutdown() override;
  Status health() const override;
  Status failure() const override;
  bool HasPeerLeft() const override;
  std::uint64_t sequence() const override { return sequence_; }
  void set_timeout(Nanoseconds timeout) override { timeout_ns_ = timeout.count(); }
  void SetLimits(const AdmissionLimits& limits) override { admission_->SetLimits(limits); }
  int rank() const override { return options_.rank; }
  int ranks() const override { return options_.ranks; }
  const std::string& group_name() const override { return options_.group_name; }

  DriveResult Drive(FinishedOperations* finished, Turn turn) override;
  Nanoseconds max_sleep() const override;
  std::shared_ptr<Doorbell> doorbell() const override;

 private:
  /// Everything that exists from the first operation to shutdown. Shared with threads that are in
  /// the middle of an operation when the group is shut down.
  struct Attached {
    Attached(std::string name, Attachment attachment, std::shared_ptr<GroupStatistics> statistics,
             std::shared_ptr<GroupAdmission> admission);
    GroupContext context;
    std::array<Lane, kLanes> lanes;
    PointToPoint point_to_point;
    CallBook calls;  ///< Guarded by submit_mutex_.
  };

  CommunicatorImpl(CommunicatorOptions options, Membership membership);

  Status AwaitTurnToAttach(TimePoint deadline);
  Result<std::shared_ptr<Attached>> EnsureAttached(TimePoint deadline);
  Result<std::shared_ptr<Attached>> FinishAttaching(Result<Attachment> attachment);
  std::shared_ptr<Attached> attached() const;
  Status Usable() const;
  /// Calls `deadline` where it has to wait.
  Status Enter(FunctionRef<TimePoint()> deadline, std::unique_lock<std::mutex>* lock,
               std::shared_ptr<Attached>* group);
  void Drain(Attached& group);
  std::shared_ptr<Operation> FailedOperation(std::string_view name, std::uint64_t sequence,
                                             const Status& status);
  static void AddDependencies(Lane& other, Task* task);
  std::shared_ptr<Operation> Transfer(const char* name, Block data, DataType dtype, int peer,
                                      std::int64_t tag, const SubmitOptions& options);
  Nanoseconds TimeoutFor(const SubmitOptions& options) const;
  void WaitForRoom(Task* task, const SubmitOptions& options);
  std::vector<std::shared_ptr<Operation>> Unfinished(Attached& attached);

  const CommunicatorOptions options_;
  const std::uint64_t generation_;
  const std::shared_ptr<GroupStatistics> statistics_;
  const std::shared_ptr<GroupAdmission> admission_ = std::make_shared<GroupAdmission>();
  std::atomic<std::int64_t> timeout_ns_;
  std::atomic<std::uint64_t> sequence_{0};  ///< Raised under submit_mutex_.
  std::atomic<bool> warned_of_full_heap_{false};

  const Membership membership_;
  std::atomic<bool> cancelled_{false};  ///< Whoever is attaching should give up.
  std::atomic<std::thread::id> attaching_by_{};

  std::mutex submit_mutex_;  // Makes numbering and queueing one step; taken before mutex_.
  /// attached_, from the first operation to Shutdown: whoever holds this lock needs no other.
  std::shared_ptr<Attached> ready_;                    // Guarded by submit_mutex_.
  std::vector<std::shared_ptr<Operation>> transfers_;  // Guarded by submit_mutex_.
  std::atomic<std::uint64_t> transfer_sequence_{0};    // Raised under submit_mutex_.

  mutable std::mutex mutex_;
  std::shared_ptr<Attached> attached_;  // Guarded, as the rest.
  Status failure_;                      ///< Why the group is unusable, if not for its memory's say.
  bool closed_ = false;
  bool attaching_ = false;                   ///< Whoever attaches tells the others how that ended.
  std::condition_variable attached_or_not_;  ///< With mutex_: attaching_ is false again.
  bool declined_ = false;
};

}  // namespace tidegate
