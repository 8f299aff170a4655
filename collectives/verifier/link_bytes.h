#pragma once

#include <span>
#include <vector>

#include "collectives/topology/topology.h"
#include "collectives/verifier/verifier.h"

namespace tidegate {

/// By directed link of `topology`: the bytes that `moved` takes over it, by the routes that the
/// simulator takes. `striped` as there: bytes between nodes are divided over several NICs
/// (Router::FindStripes), so that parts of bytes occur; else they take the best route. `moved`
/// names ranks of the topology. Cost: a route, or a few, an entry.
std::vector<double> BytesPerLink(const Topology& topology, std::span<const RankBytes> moved,
                                 bool striped = true);

}  // namespace tidegate
