#pragma once

#include <span>
#include <vector>

#include "collectives/verifier/blocks.h"
#include "collectives/verifier/orbit.h"

namespace tidegate::verifier {

/// That placement and sizes are the same once ranks are moved by the shift.
Status CheckSetting(const Problem& problem, const Blocks& blocks, Orbit orbit);

/// That `schedule` does what its representative's does, moved. `sources`: the ranks that the
/// representative's operands came from, by which they are sorted once moved; null: in any order.
Status CheckInvariant(const Schedule& schedule, const Schedule& representative,
                      const std::vector<int>* sources, const Blocks& blocks, Orbit orbit);

/// Ranks to compare, none of them a representative: all, or about `compared` of them.
std::vector<int> RanksToCompare(Orbit orbit, int compared);

}  // namespace tidegate::verifier
