#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/admission/admission.h"
#include "common/clock.h"
#include "common/status.h"

namespace tidegate {

/// Counters of one group. Thread-safe.
class GroupStatistics {
 public:
  /// Bytes read from peers of this node.
  struct SharedMemory {
    std::uint64_t bytes = 0;
    std::uint64_t resident = 0;     ///< Of these, from their tensors in shared memory.
    std::uint64_t single_copy = 0;  ///< Of these, from those in the memory of their processes.
  };

  /// Counts one finished operation, and what was read in it.
  void Count(std::string_view operation, std::uint64_t calls, std::uint64_t bytes,
             Nanoseconds duration, bool failed, const SharedMemory& read);
  /// Where the limits of the group that has the name now are.
  void set_admission(std::shared_ptr<const GroupAdmission> admission);
  /// Counts bytes that an operation still to finish has read.
  void CountRead(std::uint64_t bytes);

 private:
  friend class StatisticsRegistry;
  struct Operation {
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;
    std::uint64_t nanoseconds = 0;
    std::uint64_t errors = 0;
  };
  std::mutex mutex_;
  std::vector<std::int64_t> ranks_;  // Guarded, as the rest.
  std::map<std::string, Operation, std::less<>> operations_;
  SharedMemory read_;
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
