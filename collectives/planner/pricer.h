#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "collectives/algorithms/algorithms.h"
#include "collectives/simulator/simulator.h"
#include "collectives/topology/topology.h"
#include "common/status.h"

namespace tidegate {

/// The blocks of a call of `bytes`, as PlanRequest counts them, for simulations and bounds.
BlockSizes BlockSizesOf(Collective collective, std::uint64_t bytes, int ranks);

/// Says what algorithms cost on one machine, by simulating them: each rank by itself or, where
/// schedules and machine allow it, one node for all. Keeps the simulators. Refers to the topology,
/// which must outlive it. One thread at a time.
class Pricer {
 public:
  /// `slot_bytes`: of a stage slot, which with an algorithm's sub-slots gives its chunk.
  /// `most_marks`: progress words that a rank has.
  Pricer(const Topology& topology, const LocalRates& rates, std::size_t slot_bytes, int most_marks)
      : topology_(topology), rates_(rates), slot_bytes_(slot_bytes), most_marks_(most_marks) {}

  const Topology& topology() const { return topology_; }

  /// Seconds that a call of `bytes` takes. Long pipelines are simulated until they are steady and
  /// continued in a straight line. kUnsupported for what runs but would take too long to price,
  /// kInvalidArgument for what cannot be run.
  Result<double> Price(const NamedAlgorithm& algorithm, std::uint64_t bytes, int root);

 private:
  Result<Simulator*> Exact();
  Simulator* Orbit();
  Result<Simulation> Run(const SimulationInput& input);

  const Topology& topology_;
  const LocalRates rates_;
  const std::size_t slot_bytes_;
  const int most_marks_;
  std::unique_ptr<Simulator> exact_;  ///< Of every rank.
  std::unique_ptr<Simulator> orbit_;  ///< Of one node for all; null: not tried, or there is none.
  int representatives_ = 0;           ///< Ranks that `orbit_` simulates.
  bool tried_orbit_ = false;
};

}  // namespace tidegate
