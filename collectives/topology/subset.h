#pragma once

#include <span>

#include "collectives/topology/topology.h"

namespace tidegate {

/// `topology` as a group sees it that has some of its ranks: rank `members[i]` becomes rank i, the
/// others are gone, the machines stay. kInvalidArgument for a member that is no rank, or one named
/// twice.
Result<Topology> SelectRanks(const Topology& topology, std::span<const int> members);

}  // namespace tidegate
