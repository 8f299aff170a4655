#include "collectives/planner/pricer.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "common/units.h"

namespace tidegate {
namespace {

/// A share of the bytes that makes no difference to a price.
constexpr double kNegligible = 0.005;
/// Ranks up to which a candidate that differs from node to node is priced.
constexpr int kMostPricedOneByOne = 1024;
/// Steps up to which a candidate is priced: a few seconds. Beyond are rings of many thousands.
constexpr double kMostSteps = 6e6;
/// Chunks beyond a full pipeline of which the steady pace is taken.
constexpr int kSteadyChunks = 8;

/// Ranks that stand for all where the machine allows it: those of a node.
int OrbitOf(const Topology& topology) {
  const Placement& placement = topology.placement();
  if (!placement.is_even() || placement.nodes() < 3) return 0;
  for (int rank = 0; rank < placement.ranks(); ++rank)
    if (placement.node_of(rank) != rank / placement.ranks_on_largest_node()) return 0;
  return placement.ranks_on_largest_node();
}

}  // namespace

BlockSizes BlockSizesOf(Collective collective, std::uint64_t bytes, int ranks) {
  const auto p = static_cast<std::uint64_t>(ranks);
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return {{(bytes + p - 1) / p}};
    case Collective::kBarrier:
      return {};
    default:
      return {{bytes}};
  }
}

Result<Simulator*> Pricer::Exact() {
  if (!exact_) {
    Result<Simulator> made = Simulator::Make(topology_, {.rates = rates_});
    if (!made.ok()) return made.status();
    exact_ = std::make_unique<Simulator>(std::move(made).value());
  }
  return exact_.get();
}

Simulator* Pricer::Orbit() {
  if (tried_orbit_) return orbit_.get();
  tried_orbit_ = true;
  // Where leaf switches join several nodes, it is the nodes below one that stand for all.
  for (int shift = OrbitOf(topology_); shift > 0 && 3 * shift <= topology_.ranks(); shift *= 2) {
    if (topology_.ranks() % shift != 0) break;
    Result<Simulator> made =
        Simulator::Make(topology_, {.rates = rates_, .striped = true, .orbit = shift});
    if (!made.ok()) continue;
    orbit_ = std::make_unique<Simulator>(std::move(made).value());
    representatives_ = shift;
    break;
  }
  return orbit_.get();
}

Result<Simulation> Pricer::Run(const SimulationInput& input) {
  if (Simulator* simulator = Orbit(); simulator != nullptr) {
    // Schedules that are not alike after a shift, such as those of a root, are run in full.
    Result<Simulation> run = simulator->Run(input);
    if (run.ok()) return run;
  }
  if (topology_.ranks() > kMostPricedOneByOne)
    return Status(StatusCode::kUnsupported, "not alike on all nodes, and " +
                                                std::to_string(topology_.ranks()) +
                                                " ranks are too many to simulate one by one");
  Result<Simulator*> simulator = Exact();
  if (!simulator.ok()) return simulator.status();
  return simulator.value()->Run(input);
}

Result<double> Pricer::Price(const NamedAlgorithm& algorithm, std::uint64_t bytes, int root) {
  const Placement& placement = topology_.placement();
  const auto build = [&](int rank) {
    return algorithm.build(
        {.rank = rank, .ranks = placement.ranks(), .root = root, .placement = &placement});
  };
  const Schedule first = build(0);
  SimulationInput input;
  input.schedule = build;
  input.blocks = BlockSizesOf(algorithm.collective, bytes, placement.ranks());
  input.slot_bytes = slot_bytes_;
  if (first.Marks() > most_marks_)
    return Status(StatusCode::kInvalidArgument, "needs " + std::to_string(first.Marks()) +
                                                    " progress words, and has " +
                                                    std::to_string(most_marks_));
  const auto sub_slots = static_cast<std::size_t>(std::max(1, first.sub_slots));
  const std::size_t chunk = slot_bytes_ / sub_slots / 64 * 64;
  // Short calls use half a slot.
  if (slot_bytes_ / 2 / sub_slots < 64) {
    const std::size_t least = sub_slots * 2 * kStageSlots * 64;
    const std::string has = FormatBytes(kStageSlots * slot_bytes_);
    std::string needs = FormatBytes(least);
    if (needs == has) needs = std::to_string(least) + " bytes";  // Lest it say "2 MiB, has 2 MiB".
    return Status(StatusCode::kInvalidArgument, "needs a stage of at least " + needs +
                                                    ", and has " + has + " (TIDEGATE_STAGE_BYTES)");
  }
  // Of a tensor in unequal parts no rank stands for others. Where that hardly matters, or all ranks
  // are too many to simulate, it is priced as if it were a little longer.
  const std::uint64_t granule = 64 * static_cast<std::uint64_t>(first.parts);
  const auto in_equal_parts = [&](std::uint64_t total) {
    const std::uint64_t longer = (total + granule - 1) / granule * granule;
    const bool hardly_matters =
        static_cast<double>(longer - total) <= kNegligible * static_cast<double>(total);
    return hardly_matters || topology_.ranks() > kMostPricedOneByOne ? longer : total;
  };
  const auto simulate = [&](std::uint64_t total) -> Result<double> {
    if (first.parts > 1 && Orbit() != nullptr) total = in_equal_parts(total);
    input.blocks = BlockSizesOf(algorithm.collective, total, placement.ranks());
    Result<Simulation> run = Run(input);
    if (!run.ok()) return run.status();
    return run.value().seconds;
  };
  if (input.blocks.bytes.empty()) return simulate(bytes);

  // A pipeline is full after as many chunks as it is deep; from there on each chunk takes as long
  // as the one before.
  const std::uint64_t block = input.blocks.bytes.front() / static_cast<std::uint64_t>(first.parts);
  const auto chunks = static_cast<std::int64_t>((block + chunk - 1) / chunk);
  const std::int64_t full = 2 * (first.MaxLag() / first.period + 1) + 4;
  const int simulated_ranks = Orbit() != nullptr ? representatives_ : topology_.ranks();
  const double steps = static_cast<double>(first.steps.size()) * simulated_ranks *
                       static_cast<double>(std::min(chunks, full + kSteadyChunks));
  if (steps > kMostSteps) {
    char text[80];
    std::snprintf(text, sizeof text, "about %.0f million steps on %d ranks are too many to price",
                  steps / 1e6, simulated_ranks);
    return Status(StatusCode::kUnsupported, text);
  }
  if (chunks <= full + kSteadyChunks) return simulate(bytes);
  const double per_chunk = static_cast<double>(bytes) / static_cast<double>(chunks);
  const auto bytes_of = [&](std::int64_t count) {
    return static_cast<std::uint64_t>(per_chunk * static_cast<double>(count));
  };
  const Result<double> near = simulate(bytes_of(full));
  if (!near.ok()) return near.status();
  const Result<double> far = simulate(bytes_of(full + kSteadyChunks));
  if (!far.ok()) return far.status();
  const double pace = (far.value() - near.value()) / kSteadyChunks;
  return far.value() + pace * static_cast<double>(chunks - full - kSteadyChunks);
}

}  // namespace tidegate
