#pragma once

#include <string>

#include "collectives/topology/topology_json.h"
#include "common/check.h"

namespace tidegate {

/// The machine of tests/data/topology/<name>.json.
inline Topology Fixture(const std::string& name) {
  Result<Topology> topology =
      LoadTopology(std::string(TIDEGATE_SOURCE_DIR) + "/tests/data/topology/" + name + ".json");
  TIDEGATE_CHECK(topology.ok());
  return std::move(topology).value();
}

}  // namespace tidegate
