#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/admission/admission.h"
#include "collectives/planned_choice.h"
#include "collectives/statistics.h"
#include "collectives/transport/memory_transport.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/ipc/doorbell.h"
#include "common/status.h"

namespace tidegate {

/// What attaching to a group's memory gives.
struct Attachment {
  std::shared_ptr<MemoryTransport> transport;
  std::shared_ptr<Doorbell> doorbell;      ///< Rung by peers after each write to the memory.
  std::function<Nanoseconds()> max_sleep;  ///< Longest sleep a waiter may trust the doorbell for.
  std::function<int()> ranks_per_cpu;      ///< Transport::ranks_per_cpu.
  /// Tells ranks that have not come yet why the group failed; may be null.
  std::function<void()> leave_last_word = nullptr;
  PlanChoice plans = {};
};

/// What the lanes and the point-to-point engine of one attached group share: its memory, its name,
/// its counters, and how it fails. Thread-safe.
class GroupContext {
 public:
  GroupContext(std::string name, Attachment attachment, std::shared_ptr<GroupStatistics> statistics,
               std::shared_ptr<GroupAdmission> admission);

  MemoryTransport& transport() const { return *attachment_.transport; }
  Doorbell& doorbell() const { return *attachment_.doorbell; }
  const std::shared_ptr<Doorbell>& shared_doorbell() const { return attachment_.doorbell; }
  Nanoseconds max_sleep() const { return attachment_.max_sleep(); }
  int ranks_per_cpu() const { return attachment_.ranks_per_cpu(); }
  const std::string& name() const { return name_; }
  GroupStatistics& statistics() const { return *statistics_; }
  const PlanChoice& plans() const { return attachment_.plans; }
  const GroupAdmission& admission() const { return *admission_; }
  int rank() const { return attachment_.transport->rank(); }
  int ranks() const { return attachment_.transport->ranks(); }

  /// Once this rank has called Fail this is true, even while another rank is still writing the
  /// record of the failure that came first.
  bool failed() const {
    return attachment_.transport->failed() || failed_here_.load(std::memory_order_acquire);
  }
  /// Fails the group for all ranks, unless it has failed already.
  void Fail(StatusCode code, int culprit, const std::string& text);
  /// The group's failure as the outcome of `call`. REQUIRES: failed().
  Status FailureOf(const std::string& call) const;
  /// `reason`, which is not ok, as the outcome of `call`.
  Status Explain(const std::string& call, const Status& reason) const;

  /// To be called before this rank leaves: a group that has failed tells ranks still to come why.
  void LeaveLastWord() const;

  /// "rank 1 (pid 12, host a), rank 3 (not yet in the group)".
  std::string DescribePeers(const std::vector<int>& peers) const;

 private:
  const std::string name_;
  const Attachment attachment_;
  const std::shared_ptr<GroupStatistics> statistics_;
  const std::shared_ptr<GroupAdmission> admission_;
  std::mutex mutex_;
  Status
      own_failure_;  ///< Of the first Fail here; guarded until failed_here_, constant afterwards.
  std::atomic<bool> failed_here_{false};
};

}  // namespace tidegate
