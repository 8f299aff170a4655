#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/admission/admission.h"
#include "collectives/schedule/schedule.h"
#include "common/clock.h"
#include "common/status.h"
#include "common/ticks.h"

namespace tidegate {

/// Bytes read from peers of this node.
struct SharedMemoryBytes {
  std::uint64_t bytes = 0;
  std::uint64_t resident = 0;     ///< Of these, from their tensors in shared memory.
  std::uint64_t single_copy = 0;  ///< Of these, from those in the memory of their processes.
};

/// Counters of the collectives that one thread at a time finishes: to count takes no lock and no
/// read-modify-write. Whoever reads meanwhile may find one counter raised and not yet the next.
class CollectiveCounters {
 public:
  struct Finished {
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;
    Ticks duration = 0;
    bool failed = false;
    SharedMemoryBytes read = {};
  };
  /// Counts one finished operation, and what was read in it.
  void Count(Collective collective, const Finished& finished);

 private:
  friend class GroupStatistics;
  // All relaxed: they order nothing.
  struct Counters {
    std::atomic<std::uint64_t> calls{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> ticks{0};
    std::atomic<std::uint64_t> errors{0};
  };
  std::array<Counters, kCollectives> of_collective_;
  std::atomic<std::uint64_t> read_{0};
  std::atomic<std::uint64_t> resident_{0};
  std::atomic<std::uint64_t> single_copy_{0};
};

/// Counters of one group. Thread-safe.
class GroupStatistics {
 public:
  /// Counters to add to the group's for as long as they are held. What is given back is handed out
  /// again, with what it has counted.
  std::shared_ptr<CollectiveCounters> TakeCounters();
  /// Counts one finished send or receive.
  void CountTransfer(std::string_view operation, std::uint64_t bytes, Nanoseconds duration,
                     bool failed);
  /// Where the limits of the group that has the name now are.
  void set_admission(std::shared_ptr<const GroupAdmission> admission);
  /// Counts bytes that a transfer still to finish has read.
  void CountRead(std::uint64_t bytes);

 private:
  friend class StatisticsRegistry;
  struct Operation {
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;
    std::uint64_t nanoseconds = 0;
    std::uint64_t errors = 0;
  };
  using Operations = std::map<std::string, Operation, std::less<>>;

  /// Everything counted so far, by name. REQUIRES: mutex_ is held.
  Operations Total(SharedMemoryBytes* read) const;

  std::mutex mutex_;
  std::vector<std::int64_t> ranks_;  // Guarded, as the rest.
  Operations transfers_;
  std::uint64_t transfer_bytes_read_ = 0;
  std::vector<std::shared_ptr<CollectiveCounters>> collectives_;
  std::shared_ptr<const GroupAdmission> admission_;
};

/// The statistics of every group the process ever had, by name; a name used again goes on counting.
/// Thread-safe.
class StatisticsRegistry {
 public:
  static StatisticsRegistry& Process();

  std::shared_ptr<GroupStatistics> Group(const std::string& name,
                                         const std::vector<std::int64_t>& global_ranks);
  /// The rank shown; the first call wins.
  void SetRank(int rank);
  /// The text documented at StatsJson() in communicator.h.
  std::string ToJson();
  /// Appends ToJson() as one line, in one write, so that ranks may share the file.
  Status AppendTo(const std::string& path);

 private:
  std::mutex mutex_;
  int rank_ = -1;  // Guarded, as the rest.
  std::map<std::string, std::shared_ptr<GroupStatistics>> groups_;
};

}  // namespace tidegate
