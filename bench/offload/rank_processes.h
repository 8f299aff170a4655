#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/status.h"
#include "offload/threads/thread_plan.h"

namespace tidegate::bench {

/// Processes with one thread each on a processor of its own, which step a tensor of their own
/// whenever they are told to, all at the same time. To be made before the process has threads.
class RankProcesses {
 public:
  /// One for each place.
  RankProcesses(const std::vector<offload::ThreadPlace>& places, std::size_t elements);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// A step of each, at once; returns when the last one is done. kTimeout if one does not get on.
  Status Step();

 private:
  /// In memory that the processes share.
  struct Shared {
    std::atomic<std::uint32_t> round;  ///< Told to begin; futex.
    std::atomic<std::uint32_t> done;   ///< Steps done by all of them; futex.
  };
  [[noreturn]] static void Serve(Shared& shared, const offload::ThreadPlace& place,
                                 std::size_t elements);

  Shared* shared_;
  std::vector<pid_t> children_;
  std::uint32_t rounds_ = 0;
};

}  // namespace tidegate::bench
