#pragma once

#include <span>

#include "collectives/topology/topology.h"
#include "common/status.h"

namespace tidegate {

/// A link, both its directions, that is slower than described or dead.
struct LinkFault {
  LinkId link = 0;
  double factor = 1;  ///< Of its bandwidth; 0: dead.
};

/// `topology` with these faults: a machine of its own, whose routes avoid what is dead and stripe
/// by what is left, and which has bounds of its own. kInvalidArgument for links that do not exist,
/// factors outside 0 to 1, and where ranks no longer reach each other.
Result<Topology> WithFaults(const Topology& topology, std::span<const LinkFault> faults);

}  // namespace tidegate
