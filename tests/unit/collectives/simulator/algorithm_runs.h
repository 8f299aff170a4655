#pragma once

#include <string>

#include "collectives/algorithms/algorithms.h"
#include "collectives/simulator/simulator.h"
#include "common/check.h"

namespace tidegate::testing {

/// The schedules of the named algorithm on `topology`, which must outlive the result.
inline std::function<Schedule(int)> SchedulesOf(const Topology& topology, Collective collective,
                                                const std::string& name, int root = 0) {
  const NamedAlgorithm* const algorithm = FindAlgorithm(collective, name);
  TIDEGATE_CHECK(algorithm != nullptr);
  return [algorithm, &topology, root](int rank) {
    return algorithm->build({.rank = rank,
                             .ranks = topology.ranks(),
                             .root = root,
                             .placement = &topology.placement()});
  };
}

/// `block` bytes a rank (or in all, where the collective has one tensor), in chunks of
/// `chunk_bytes`; 0: in one.
inline SimulationInput RunOf(const Topology& topology, Collective collective,
                             const std::string& name, std::uint64_t block,
                             std::size_t chunk_bytes = 0, int root = 0) {
  SimulationInput input;
  input.schedule = SchedulesOf(topology, collective, name, root);
  input.blocks = {{block}};
  input.chunk_bytes = chunk_bytes > 0 ? chunk_bytes : (block + 63) / 64 * 64 + 64;
  return input;
}

}  // namespace tidegate::testing
