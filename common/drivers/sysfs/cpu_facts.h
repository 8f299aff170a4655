#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/status.h"

namespace tidegate {

/// A physical core, by its first hardware thread.
struct CoreFact {
  int cpu = 0;                 ///< The kernel's number of its first thread.
  std::vector<int> cpus = {};  ///< All its threads, ascending.
  int package = 0;
  int numa = 0;   ///< The kernel's number of its NUMA node.
  int cache = 0;  ///< Number of its last-level cache, from 0 in the order of their first cores.

  bool operator==(const CoreFact&) const = default;
};

struct NumaFact {
  int numa = 0;
  std::uint64_t memory_bytes = 0;
  std::vector<int> distance = {};  ///< To each NumaFact in order, 10 for itself (ACPI SLIT).

  bool operator==(const NumaFact&) const = default;
};

/// The processors of a machine: everything online, whether this process may use it or not.
struct CpuFacts {
  std::vector<CoreFact> cores;  ///< By their first threads, ascending.
  std::vector<NumaFact> numa;   ///< By number, ascending; at least one.

  bool operator==(const CpuFacts&) const = default;
};

/// Where CpuFacts come from: sysfs, hwloc, or a test's own.
using CpuSource = std::function<Result<CpuFacts>()>;

/// Reads /sys/devices/system/{cpu,node}. What a container hides has defaults: one NUMA node, one
/// cache a package, threads as cores. kInternal if not even the list of processors can be read.
Result<CpuFacts> ReadSysfsCpus(const std::string& root = "/");

}  // namespace tidegate
