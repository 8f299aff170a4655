#pragma once

#include "common/drivers/sysfs/cpu_facts.h"

namespace tidegate {

/// Processors as hwloc sees them, which knows more kinds of machine than this project. The
/// library is looked for at run time (libhwloc.so.15); kUnsupported where it is missing, and in
/// builds without its header.
Result<CpuFacts> ReadHwlocCpus();

}  // namespace tidegate
