#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/schedule/schedule.h"
#include "collectives/simulator/network.h"
#include "collectives/simulator/program.h"
#include "collectives/topology/bounds.h"
#include "collectives/topology/topology.h"
#include "common/status.h"

namespace tidegate {

/// How a machine is simulated.
struct SimulatorOptions {
  LocalRates rates;
  /// Bytes between nodes are divided over the NICs closest to their rank, by rate; else they take
  /// the one that routes.h prefers.
  bool striped = true;
  /// 0: every rank by itself. Else ranks 0 .. orbit-1 stand for all: schedules and machine must be
  /// the same after a shift of all ranks by this number (orbits.h). Of the schedules a sample is
  /// compared.
  int orbit = 0;
};

/// One call of a collective.
struct SimulationInput {
  /// The program of a rank, which is asked for once for each that is simulated.
  std::function<Schedule(int rank)> schedule;
  BlockSizes blocks;
  /// Bytes of a stage slot; the chunk is this divided by the schedule's sub-slots, rounded down to
  /// 64 bytes, as in the executor.
  std::size_t slot_bytes = std::size_t{1} << 19;
  /// The chunk itself, rounded the same way, for who compares chunk sizes; 0: from slot_bytes.
  std::size_t chunk_bytes = 0;
  /// When each rank starts, in seconds from 0; empty: together. Every rank by itself only.
  std::vector<double> start_s;
  /// Each message and each step on a core is late by up to this, in seconds, at random, equally
  /// distributed and reproducible from the seed. Every rank by itself only.
  double jitter_s = 0;
  std::uint64_t seed = 0;
};

/// What became of it.
struct Simulation {
  double seconds = 0;                       ///< Until the last rank is done.
  std::vector<double> rank_seconds;         ///< By rank (of an orbit: its representatives).
  std::array<double, kTiers> tier_bytes{};  ///< How far bytes went, over all ranks.
  std::vector<double> link_bytes;           ///< By directed link.
  std::uint64_t chunk_bytes = 0;
  std::int64_t chunks = 0;             ///< Of the longest block.
  std::uint64_t peak_stage_bytes = 0;  ///< Stage memory of a rank's chunks in flight.
  std::int64_t steps = 0;              ///< Executed, of those simulated.
  std::int64_t events = 0;             ///< Starts and ends of transfers and arrivals waited for.

  /// Share of its capacity that `link` carried over the whole time, 0 to 1.
  double Utilisation(const Topology& topology, LinkId link) const;
  /// The most used link.
  LinkId BusiestLink(const Topology& topology) const;
};

/// Runs schedules on a machine that may not exist, as the executor would: every rank its steps in
/// order, waiting where it has to.
///
/// Model. A put is handed to the rank's sender, which sends one at a time, in order; it takes the
/// links of its route at the max-min fair share of all that is under way (fair_share.h), and is
/// there the route's latency after its last byte has left. A signal takes the latency of the path
/// and arrives after the puts to the same rank before it. Copies, gets and reductions occupy the
/// rank; they take its core, the node's memory and, for what lies on other ranks, the links between
/// them. A reduction into the stage of another rank is a reduction, then a put. Not modelled: the
/// comparison of calls at the start, contention inside switches, the cost of waiting.
///
/// Keeps routes from run to run: a small run costs about a microsecond an event. Refers to the
/// topology, which must outlive it. One thread at a time.
class Simulator {
 public:
  /// kInvalidArgument where the orbit does not fit the topology or a rate is not positive.
  static Result<Simulator> Make(const Topology& topology, const SimulatorOptions& options = {});
  Simulator(Simulator&&) noexcept;
  ~Simulator();

  /// kInvalidArgument for input out of range, schedules that refer to what does not exist, that
  /// differ within an orbit, and that deadlock, naming a rank that waits and what for.
  Result<Simulation> Run(const SimulationInput& input);

 private:
  explicit Simulator(std::unique_ptr<Network> network);
  std::unique_ptr<Network> network_;
};

/// One run alone.
Result<Simulation> Simulate(const Topology& topology, const SimulationInput& input,
                            const SimulatorOptions& options = {});

/// The time that no schedule beats (bounds.h); 0 for a barrier. `blocks` are of one size, of gather
/// and scatter of any.
Bound BoundFor(const Topology& topology, Collective collective, const BlockSizes& blocks,
               int root = 0);

}  // namespace tidegate
