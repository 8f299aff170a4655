#include "collectives/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "common/units.h"

namespace tidegate {
namespace {

/// How much slower than the fastest counts as equal: less than models are true to.
constexpr double kAsGood = 1.02;
/// A share of the bytes that makes no difference to a price.
constexpr double kNegligible = 0.005;
/// Ranks up to which a candidate that differs from node to node is priced.
constexpr int kMostPricedOneByOne = 1024;
/// Steps up to which a candidate is priced: a few seconds. Beyond are rings of many thousands.
constexpr double kMostSteps = 6e6;
/// Chunks beyond a full pipeline of which the steady pace is taken.
constexpr int kSteadyChunks = 8;
constexpr const char* kSeveralPasses = "reduces in several passes";

/// Which order of reduction an algorithm has: equal names, equal bits.
std::string_view OrderOf(const NamedAlgorithm& algorithm) {
  return algorithm.in_one_pass ? "ranks" : std::string_view(algorithm.name);
}

std::uint64_t MiddleOf(int size_class) {
  if (size_class == 0) return 0;
  const std::uint64_t least = std::uint64_t{1} << (size_class - 1);
  return least + least / 2;
}

/// Ranks that stand for all where the machine allows it: those of a node.
int OrbitOf(const Topology& topology) {
  const Placement& placement = topology.placement();
  if (!placement.is_even() || placement.nodes() < 3) return 0;
  for (int rank = 0; rank < placement.ranks(); ++rank)
    if (placement.node_of(rank) != rank / placement.ranks_on_largest_node()) return 0;
  return placement.ranks_on_largest_node();
}

void Take(const NamedAlgorithm& algorithm, double seconds, Decision& decision) {
  Candidate candidate;
  candidate.algorithm = &algorithm;
  candidate.seconds = seconds;
  decision.candidates.push_back(std::move(candidate));
  decision.algorithm = &algorithm;
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

struct Planner::State {
  using Key = std::uint64_t;

  State(const Topology& the_topology, PlannerOptions the_options)
      : topology(the_topology), options(std::move(the_options)) {}

  /// The simulator of every rank, or of an orbit where schedules and machine have one.
  Result<Simulator*> Exact() {
    if (!exact) {
      Result<Simulator> made = Simulator::Make(topology, {.rates = options.rates});
      if (!made.ok()) return made.status();
      exact = std::make_unique<Simulator>(std::move(made).value());
    }
    return exact.get();
  }
  Simulator* Orbit() {
    if (tried_orbit) return orbit.get();
    tried_orbit = true;
    // Where leaf switches join several nodes, it is the nodes below one that stand for all.
    for (int shift = OrbitOf(topology); shift > 0 && 3 * shift <= topology.ranks(); shift *= 2) {
      if (topology.ranks() % shift != 0) break;
      Result<Simulator> made =
          Simulator::Make(topology, {.rates = options.rates, .striped = true, .orbit = shift});
      if (!made.ok()) continue;
      orbit = std::make_unique<Simulator>(std::move(made).value());
      representatives = shift;
      break;
    }
    return orbit.get();
  }

  Result<Simulation> Run(const SimulationInput& input) {
    if (Simulator* simulator = Orbit(); simulator != nullptr) {
      // Schedules that are not alike after a shift, such as those of a root, are run in full.
      Result<Simulation> run = simulator->Run(input);
      if (run.ok()) return run;
    }
    if (topology.ranks() > kMostPricedOneByOne)
      return Status(StatusCode::kUnsupported, "not alike on all nodes, and " +
                                                  std::to_string(topology.ranks()) +
                                                  " ranks are too many to simulate one by one");
    Result<Simulator*> simulator = Exact();
    if (!simulator.ok()) return simulator.status();
    return simulator.value()->Run(input);
  }

  Result<double> Price(const NamedAlgorithm& algorithm, std::uint64_t bytes, int root);
  Result<Decision> Make(const PlanRequest& request);
  Status TakeForced(const NamedAlgorithm& forced, const PlanRequest& request, Decision& decision);
  Status TakeFastest(const PlanRequest& request, Decision& decision);
  Bound BoundOf(Collective collective, std::uint64_t bytes, int root);

  const Topology& topology;
  const PlannerOptions options;
  std::unique_ptr<Simulator> exact;
  std::unique_ptr<Simulator> orbit;
  int representatives = 0;  ///< Ranks that `orbit` simulates.
  bool tried_orbit = false;
  std::unordered_map<Key, std::unique_ptr<Decision>> decisions;
};

Result<double> Planner::State::Price(const NamedAlgorithm& algorithm, std::uint64_t bytes,
                                     int root) {
  const Placement& placement = topology.placement();
  const auto build = [&](int rank) {
    return algorithm.build(
        {.rank = rank, .ranks = placement.ranks(), .root = root, .placement = &placement});
  };
  const Schedule first = build(0);
  SimulationInput input;
  input.schedule = build;
  input.blocks = BlockSizesOf(algorithm.collective, bytes, placement.ranks());
  input.slot_bytes = options.slot_bytes;
  if (first.Marks() > options.most_marks)
    return Status(StatusCode::kInvalidArgument, "needs " + std::to_string(first.Marks()) +
                                                    " progress words, and has " +
                                                    std::to_string(options.most_marks));
  const auto sub_slots = static_cast<std::size_t>(std::max(1, first.sub_slots));
  const std::size_t chunk = options.slot_bytes / sub_slots / 64 * 64;
  if (chunk == 0)
    return Status(StatusCode::kInvalidArgument,
                  "needs a stage of at least " + FormatBytes(kStageSlots * sub_slots * 64) +
                      ", and has " + FormatBytes(kStageSlots * options.slot_bytes) +
                      " (TIDEGATE_STAGE_BYTES)");
  // Of a tensor in unequal parts no rank stands for others. Where that hardly matters, or all ranks
  // are too many to simulate, it is priced as if it were a little longer.
  const std::uint64_t granule = 64 * static_cast<std::uint64_t>(first.parts);
  const auto in_equal_parts = [&](std::uint64_t total) {
    const std::uint64_t longer = (total + granule - 1) / granule * granule;
    const bool hardly_matters =
        static_cast<double>(longer - total) <= kNegligible * static_cast<double>(total);
    return hardly_matters || topology.ranks() > kMostPricedOneByOne ? longer : total;
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
  const int simulated_ranks = Orbit() != nullptr ? representatives : topology.ranks();
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

Bound Planner::State::BoundOf(Collective collective, std::uint64_t bytes, int root) {
  return BoundFor(topology, collective, BlockSizesOf(collective, bytes, topology.ranks()), root);
}

Status Planner::State::TakeForced(const NamedAlgorithm& forced, const PlanRequest& request,
                                  Decision& decision) {
  const Result<double> price = Price(forced, decision.priced_bytes, request.root);
  // What cannot be priced may run all the same.
  if (!price.ok() && price.status().code() != StatusCode::kUnsupported)
    return Status(price.status().code(), "TIDEGATE_ALGO: \"" + forced.name + "\" of " +
                                             std::string(NameOf(request.collective)) +
                                             " cannot be run here: " + price.status().message());
  Take(forced, price.ok() ? price.value() : 0, decision);
  decision.reason = "forced by TIDEGATE_ALGO";
  if (!price.ok()) decision.reason += ", not priced: " + price.status().message();
  return Status();
}

Status Planner::State::TakeFastest(const PlanRequest& request, Decision& decision) {
  const Placement& placement = topology.placement();
  std::vector<Candidate> excluded;
  const NamedAlgorithm* unpriced = nullptr;
  for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
    if (algorithm.collective != request.collective) continue;
    if (!algorithm.serves(placement)) continue;
    Candidate candidate;
    candidate.algorithm = &algorithm;
    if (request.in_one_pass && !algorithm.in_one_pass) {
      candidate.excluded = kSeveralPasses;
    } else if (Result<double> price = Price(algorithm, decision.priced_bytes, request.root);
               !price.ok()) {
      candidate.excluded = price.status().message();
      if (unpriced == nullptr && price.status().code() == StatusCode::kUnsupported)
        unpriced = &algorithm;
    } else {
      candidate.seconds = price.value();
      const auto measured =
          options.measured.find({request.collective, algorithm.name, SizeClass(request.bytes)});
      if (measured != options.measured.end()) candidate.measured_seconds = measured->second;
    }
    (candidate.excluded.empty() ? decision.candidates : excluded).push_back(std::move(candidate));
  }
  if (decision.candidates.empty() && unpriced != nullptr) {
    Take(*unpriced, 0, decision);
    decision.reason = "the simplest: none was priced";
    std::erase_if(excluded, [&](const Candidate& one) { return one.algorithm == unpriced; });
    decision.candidates.insert(decision.candidates.end(), excluded.begin(), excluded.end());
    return Status();
  }
  std::stable_sort(decision.candidates.begin(), decision.candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  if (decision.candidates.empty()) {
    std::string why;
    for (const Candidate& candidate : excluded)
      why += (why.empty() ? ": " : "; ") + candidate.algorithm->name + " " + candidate.excluded;
    return Status(StatusCode::kUnsupported, "no algorithm serves " +
                                                std::string(NameOf(request.collective)) + " on " +
                                                std::to_string(placement.nodes()) + " nodes" + why);
  }
  // Of those that are as good as the fastest, the first of the catalogue: the simplest.
  const double best = decision.candidates.front().seconds;
  const Candidate* chosen =
      &*std::min_element(decision.candidates.begin(), decision.candidates.end(),
                         [&](const Candidate& a, const Candidate& b) {
                           const bool a_is_late = a.seconds > best * kAsGood;
                           const bool b_is_late = b.seconds > best * kAsGood;
                           return a_is_late != b_is_late ? b_is_late : a.algorithm < b.algorithm;
                         });
  const std::string_view order = OrderOf(*chosen->algorithm);
  decision.reason = (chosen->seconds == best ? "fastest of " : "as fast as any of ") +
                    std::to_string(decision.candidates.size()) + " candidates";
  for (const Candidate& candidate : decision.candidates) {
    if (candidate.measured_seconds == 0) continue;
    if (Reduces(request.collective) && OrderOf(*candidate.algorithm) != order) continue;
    if (chosen->measured_seconds == 0 || candidate.measured_seconds < chosen->measured_seconds) {
      chosen = &candidate;
      decision.reason = "fastest as measured";
    }
  }
  decision.algorithm = chosen->algorithm;
  decision.candidates.insert(decision.candidates.end(), excluded.begin(), excluded.end());
  return Status();
}

Result<Decision> Planner::State::Make(const PlanRequest& request) {
  Decision decision;
  decision.priced_bytes = MiddleOf(SizeClass(request.bytes));
  decision.bound = BoundOf(request.collective, decision.priced_bytes, request.root);
  const auto choice = options.forced.find(request.collective);
  const NamedAlgorithm* const forced =
      choice == options.forced.end() ? nullptr : FindAlgorithm(choice->first, choice->second);
  const bool is_set_aside = forced != nullptr && request.in_one_pass && !forced->in_one_pass;
  if (forced != nullptr && !is_set_aside) {
    TIDEGATE_RETURN_IF_ERROR(TakeForced(*forced, request, decision));
  } else {
    TIDEGATE_RETURN_IF_ERROR(TakeFastest(request, decision));
  }
  for (const Candidate& candidate : decision.candidates) {
    if (candidate.algorithm != decision.algorithm) continue;
    if (decision.bound.seconds <= 0 || candidate.seconds <= 0) continue;
    char share[48];
    std::snprintf(share, sizeof share, ", %.0f%% of the bound",
                  100 * decision.bound.seconds / candidate.seconds);
    decision.reason += share;
  }
  if (is_set_aside)
    decision.reason += "; \"" + forced->name + "\" of TIDEGATE_ALGO is set aside: it " +
                       kSeveralPasses + ", and this call takes one";
  return decision;
}

Planner::Planner(std::unique_ptr<State> state) : state_(std::move(state)) {}
Planner::Planner(Planner&&) noexcept = default;
Planner::~Planner() = default;

Result<Planner> Planner::Make(const Topology& topology, PlannerOptions options) {
  TIDEGATE_RETURN_IF_ERROR(CheckChoices(options.forced, topology.placement()));
  return Planner(std::make_unique<State>(topology, std::move(options)));
}

Result<const Decision*> Planner::Decide(const PlanRequest& request) {
  if (request.root < 0 || request.root >= state_->topology.ranks())
    return Status(StatusCode::kInvalidArgument, "root " + std::to_string(request.root) +
                                                    " is outside [0, " +
                                                    std::to_string(state_->topology.ranks()) + ")");
  const State::Key key = (static_cast<State::Key>(request.root) << 32) |
                         (static_cast<State::Key>(SizeClass(request.bytes)) << 16) |
                         (static_cast<State::Key>(request.collective) << 1) |
                         (request.in_one_pass ? 1U : 0U);
  std::unique_ptr<Decision>& decision = state_->decisions[key];
  if (decision == nullptr) {
    Result<Decision> made = state_->Make(request);
    if (!made.ok()) return made.status();
    decision = std::make_unique<Decision>(std::move(made).value());
  }
  return decision.get();
}

Result<double> Planner::Price(const NamedAlgorithm& algorithm, std::uint64_t bytes, int root) {
  return state_->Price(algorithm, bytes, root);
}

int Planner::SizeClass(std::uint64_t bytes) {
  int size_class = 0;
  for (; bytes > 0; bytes >>= 1) ++size_class;
  return size_class;
}

std::string Explain(const Decision& decision, const PlanRequest& request) {
  std::string text = std::string(NameOf(request.collective)) + " of " + FormatBytes(request.bytes) +
                     ", priced at " + FormatBytes(decision.priced_bytes) + ": " +
                     decision.algorithm->name + ", " + decision.reason + "\n";
  if (decision.bound.seconds > 0) {
    char line[64];
    std::snprintf(line, sizeof line, "  bound  %12.3f us  ", decision.bound.seconds * 1e6);
    text += line + decision.bound.cut + "\n";
  }
  for (const Candidate& candidate : decision.candidates) {
    char line[96];
    if (!candidate.excluded.empty()) {
      std::snprintf(line, sizeof line, "  %-26s   excluded: ", candidate.algorithm->name.c_str());
      text += line + candidate.excluded + "\n";
      continue;
    }
    if (candidate.seconds == 0 && decision.bound.seconds > 0) {
      std::snprintf(line, sizeof line, "  %-26s   not priced  <- chosen\n",
                    candidate.algorithm->name.c_str());
      text += line;
      continue;
    }
    const double share =
        candidate.seconds > 0 ? 100 * decision.bound.seconds / candidate.seconds : 0;
    std::snprintf(line, sizeof line, "  %-26s %12.3f us  %5.1f%% of the bound%s\n",
                  candidate.algorithm->name.c_str(), candidate.seconds * 1e6, share,
                  candidate.algorithm == decision.algorithm ? "  <- chosen" : "");
    text += line;
  }
  return text;
}

}  // namespace tidegate
