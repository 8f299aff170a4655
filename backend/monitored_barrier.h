#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "common/clock.h"
#include "common/status.h"

namespace tidegate {

/// A barrier over the store of one group that names the ranks that did not come.
///
/// It touches nothing but the store: neither the group's memory nor its order of calls. So one that
/// fails leaves the group usable, and it finds the missing rank also where a collective hangs. The
/// ranks count their barriers. Each writes that it has come to number n; rank 0 waits for all and
/// writes how n ended; the others wait for that. A rank that comes to a barrier which rank 0 has
/// given up is told so at once; its next one is the others' next one again.
///
/// Thread-safe; calls of one rank follow one another. Costs a few requests to the store a rank.
class MonitoredBarrier {
 public:
  /// `global_ranks` is empty for all ranks of the job.
  MonitoredBarrier(c10::intrusive_ptr<c10d::Store> store, int rank, int ranks,
                   std::vector<std::int64_t> global_ranks);

  /// Blocks until all ranks have come; kTimeout after `timeout` (zero: if not all are there now),
  /// naming on rank 0 the first missing rank, or all if `name_all`; kInterrupted after a signal;
  /// what `health` says once it is not ok. Must not be called holding the GIL.
  Status Pass(Nanoseconds timeout, bool name_all, const std::function<Status()>& health);

 private:
  Status PassAsRoot(Nanoseconds timeout, bool name_all, const std::function<Status()>& health);
  Status PassAsOther(Nanoseconds timeout, const std::function<Status()>& health);
  /// Polls until `found`, the deadline, a signal or a failure; ok with *found set or at the
  /// deadline.
  Status Poll(TimePoint deadline, const std::function<Status()>& health,
              const std::function<bool()>& found, bool* was_found) const;
  std::vector<int> Missing() const;
  /// "Rank 1 failed to pass monitoredBarrier in 100 ms".
  std::string NameMissing(const std::vector<int>& missing, bool name_all,
                          Nanoseconds timeout) const;
  std::string ArrivalKey(std::uint64_t number, int rank) const;
  std::string OutcomeKey(std::uint64_t number) const;
  void ForgetEarlier();

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int ranks_;
  const std::vector<std::int64_t> global_ranks_;
  std::mutex mutex_;
  std::uint64_t number_ = 0;  // Guarded, as the rest: of the barrier under way or of the last one.
  std::uint64_t forgotten_ = 0;  ///< Rank 0: the keys up to this number are gone from the store.
};

}  // namespace tidegate
