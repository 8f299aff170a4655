#include "collectives/simulator/simulator.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "collectives/simulator/run.h"

namespace tidegate {

double Simulation::Utilisation(const Topology& topology, LinkId link) const {
  return seconds > 0
             ? link_bytes[static_cast<std::size_t>(link)] / topology.bandwidth_Bps(link) / seconds
             : 0;
}

LinkId Simulation::BusiestLink(const Topology& topology) const {
  LinkId busiest = 0;
  for (LinkId id = 1; id < topology.link_end(); ++id)
    if (Utilisation(topology, id) > Utilisation(topology, busiest)) busiest = id;
  return busiest;
}

Simulator::Simulator(std::unique_ptr<Network> network) : network_(std::move(network)) {}
Simulator::Simulator(Simulator&&) noexcept = default;
Simulator::~Simulator() = default;

Result<Simulator> Simulator::Make(const Topology& topology, const SimulatorOptions& options) {
  for (const double rate : {options.rates.core_Bps, options.rates.memory_Bps})
    if (!(rate > 0))
      return Status(StatusCode::kInvalidArgument,
                    "a core or memory of " + std::to_string(rate) +
                        " byte/s; rates are positive, infinite where they do not matter");
  Result<Orbits> orbits =
      FindOrbits(topology, options.orbit == 0 ? topology.ranks() : options.orbit);
  if (!orbits.ok()) return orbits.status();
  return Simulator(std::make_unique<Network>(topology, std::move(orbits).value(), options.rates,
                                             options.striped));
}

Result<Simulation> Simulator::Run(const SimulationInput& input) {
  return SimulationRun(*network_, input).Execute();
}

Result<Simulation> Simulate(const Topology& topology, const SimulationInput& input,
                            const SimulatorOptions& options) {
  Result<Simulator> simulator = Simulator::Make(topology, options);
  if (!simulator.ok()) return simulator.status();
  return simulator.value().Run(input);
}

Bound BoundFor(const Topology& topology, Collective collective, const BlockSizes& blocks,
               int root) {
  const double sum = std::accumulate(blocks.bytes.begin(), blocks.bytes.end(), 0.0);
  const double all = blocks.bytes.size() == 1 ? sum * topology.ranks() : sum;
  const std::vector<double> shards(blocks.bytes.begin(), blocks.bytes.end());
  switch (collective) {
    case Collective::kAllGather:
      return AllGatherBound(topology, all);
    case Collective::kReduceScatter:
      return ReduceScatterBound(topology, all);
    case Collective::kAllReduce:
      return AllReduceBound(topology, sum);
    case Collective::kBroadcast:
      return BroadcastBound(topology, sum, root);
    case Collective::kAllToAll:
      return AllToAllBound(topology, all);
    case Collective::kReduce:
      return ReduceBound(topology, sum, root);
    case Collective::kGather:
      return GatherBound(topology, shards, root);
    case Collective::kScatter:
      return ScatterBound(topology, shards, root);
    case Collective::kBarrier:
      return {};
  }
  return {};
}

}  // namespace tidegate
