#pragma once

#include "collectives/schedule/schedule.h"
#include "collectives/topology/placement.h"
#include "collectives/verifier/verifier.h"

namespace tidegate::verifier {

/// What can be said of the program of `rank` without running it: that it is safe to run
/// (FindFault), is what was asked for, is of one group with `first`, the program of rank 0, and
/// reads the stages of its own node alone.
Status CheckStructure(const Schedule& schedule, int rank, const Schedule& first,
                      const Problem& problem);

}  // namespace tidegate::verifier
