#pragma once

#include <cstdint>
#include <vector>

#include "collectives/topology/topology.h"

namespace tidegate {

/// Colours of vertices by colour refinement (1-dimensional Weisfeiler-Leman): vertices that an
/// automorphism of the graph maps to each other have one colour. The converse holds for trees and
/// for the clusters of this project, not for every graph. Figures of links and ports count, ids and
/// numbers do not. `distinct`, if given, gets a colour of its own.
/// Cost: O(links) a round, a round for each link of the longest way that tells two vertices apart.
std::vector<std::uint64_t> RefineColours(const Topology& topology, VertexId distinct = kNone);

/// The lowest rank of each colour, ascending.
std::vector<int> RanksOfEachColour(const Topology& topology,
                                   const std::vector<std::uint64_t>& colours);

}  // namespace tidegate
