#pragma once

#include <string>
#include <vector>

#include "collectives/topology/topology.h"

namespace tidegate::scale {

inline constexpr int kRanksPerNode = 8;

/// A cluster, and how it is simulated.
struct Scenario {
  std::string name;
  Topology topology;
  int orbit = 0;              ///< 0: every rank by itself.
  std::string approximation;  ///< Empty: exact.
  /// The cluster that the flat ring runs on, which may be another one; equal names, equal times.
  std::string ring;
  Topology ring_topology;
  int ring_orbit = 0;  ///< Not `orbit` where ring_topology is not `topology`.
};

/// All scenarios of `ranks` ranks.
std::vector<Scenario> ScenariosOf(int ranks);

}  // namespace tidegate::scale
