#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/config.h"
#include "common/drivers/sysfs/cpu_facts.h"

namespace tidegate::offload {

/// Where a thread of a pool may run.
struct ThreadPlace {
  std::vector<int> cpus = {};  ///< One: pinned there. Several: confined to them. None: anywhere.
  int numa = 0;                ///< The kernel's number of the NUMA node that they belong to.

  bool operator==(const ThreadPlace&) const = default;
};

/// What decides how many threads a rank's pool has, and where.
struct ThreadFacts {
  std::vector<int> usable = {};      ///< Processors of the affinity mask, ascending.
  std::vector<CoreFact> cores = {};  ///< Of the machine; other processors count as cores.
  /// cgroup cpu quota in processors, which the ranks of the node have together; nullopt: none.
  std::optional<double> quota = {};
  std::optional<std::size_t> threads = {};      ///< TIDEGATE_OFFLOAD_THREADS.
  std::optional<std::size_t> omp_threads = {};  ///< OMP_NUM_THREADS.
  int local_rank = 0;                           ///< LOCAL_RANK.
  int local_ranks = 1;                          ///< LOCAL_WORLD_SIZE.
  /// The ranks of the node whose mask is this rank's, which therefore share its processors.
  int sharers = 1;
  int sharer = 0;  ///< This rank's number among them.
};

/// One place a thread, that of the calling thread first; at least one.
///
/// The ranks that share a mask divide its cores into equal, contiguous, disjoint parts, NUMA node
/// by NUMA node (with more ranks than cores: its hardware threads; with more than these, they are
/// reused). A rank gets one thread a core of its part, but no more than its part of the quota, and
/// than OMP_NUM_THREADS. An OMP_NUM_THREADS of 1 beside several local ranks is no limit: torchrun
/// sets it for whoever has set nothing. TIDEGATE_OFFLOAD_THREADS overrides both; beyond the cores
/// it takes their other hardware threads, and beyond these shares them.
///
/// Threads are pinned, one to a processor, if they fill the rank's part. Fewer ones are confined to
/// it only, each within its NUMA node: another job with the same limit on the same machine would
/// choose the same processors.
std::vector<ThreadPlace> PlanThreads(const ThreadFacts& facts);

/// The facts of this process and thread. `setting` is Config::offload_threads; OMP_NUM_THREADS,
/// LOCAL_RANK and LOCAL_WORLD_SIZE come from `environment`; `root` replaces "/" for tests.
///
/// Sharers: a rank whose mask is that of the process that launched the ranks shares it with all of
/// them. One with another mask was bound by itself (numactl, taskset), and shares with those ranks
/// that have the same one now. What cannot be read counts as shared by all.
ThreadFacts ReadThreadFacts(std::optional<std::size_t> setting, const Environment& environment,
                            const std::string& root = "/");

}  // namespace tidegate::offload
