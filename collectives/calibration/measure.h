#pragma once

#include "collectives/topology/discovery.h"
#include "common/clock.h"

namespace tidegate {

/// What this machine does now, measured with up to `cores` threads (at most 16) and 128 MiB of
/// memory for about 0.1 s, a fraction of a second where processors are shared: copies of one core
/// and of all, and the time that a flag takes from one core to another. `numa_nodes` share the
/// memory's rate. Of several rounds the shortest counts: other programs only make them longer. What
/// there are no threads, no processors or no memory for stays as declared.
MachineRates MeasureMachine(int cores, int numa_nodes, const Clock& clock = SteadyClock());

}  // namespace tidegate
