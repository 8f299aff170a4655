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
constexpr const char* kSeveralPasses = "reduces in several passes";
constexpr const char* kEqualBlocks = "needs blocks of one size";
constexpr const char* kAnotherOrder = "reduces in another order than what declared rates choose";

/// Which order of reduction an algorithm has: equal names, equal bits.
std::string_view OrderOf(const NamedAlgorithm& algorithm, const Placement& placement) {
  return algorithm.in_one_pass(placement) ? "ranks" : std::string_view(algorithm.name);
}

/// "" or why `algorithm` cannot do what is asked, whatever it costs.
std::string_view Unfitness(const NamedAlgorithm& algorithm, const Placement& placement,
                           const PlanRequest& request) {
  if (request.in_one_pass && !algorithm.in_one_pass(placement)) return kSeveralPasses;
  if (request.uneven && algorithm.even) return kEqualBlocks;
  return "";
}

std::uint64_t MiddleOf(int size_class) {
  if (size_class == 0) return 0;
  const std::uint64_t least = std::uint64_t{1} << (size_class - 1);
  return least + least / 2;
}

void Take(const NamedAlgorithm& algorithm, double seconds, Decision& decision) {
  Candidate candidate;
  candidate.algorithm = &algorithm;
  candidate.seconds = seconds;
  decision.candidates.push_back(std::move(candidate));
  decision.algorithm = &algorithm;
}

/// Of those that are as good as the fastest, the first of the catalogue: the simplest.
const Candidate* Simplest(const std::vector<Candidate>& candidates) {
  double best = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : candidates) best = std::min(best, candidate.seconds);
  return &*std::min_element(candidates.begin(), candidates.end(),
                            [&](const Candidate& a, const Candidate& b) {
                              const bool a_is_late = a.seconds > best * kAsGood;
                              const bool b_is_late = b.seconds > best * kAsGood;
                              return a_is_late != b_is_late ? b_is_late : a.algorithm < b.algorithm;
                            });
}

}  // namespace

struct Planner::State {
  using Key = std::uint64_t;

  State(const Topology& topology, PlannerOptions the_options)
      : options(std::move(the_options)),
        declared(topology, options.rates, options.slot_bytes, options.most_marks),
        calibrated(options.calibrated != nullptr ? *options.calibrated : topology,
                   options.calibrated_rates, options.slot_bytes, options.most_marks),
        pricer(options.calibrated != nullptr ? calibrated : declared),
        reduces_in_one_pass(options.one_pass_on_one_node && topology.placement().nodes() == 1) {}

  Result<Decision> Make(const PlanRequest& request, const Watch& watch);
  Status TakeForced(const NamedAlgorithm& forced, const PlanRequest& request, Decision& decision);
  Status TakeFastest(const PlanRequest& request, const Watch& watch, Decision& decision);
  std::string CanonicalOrder(const PlanRequest& request, std::uint64_t bytes);

  const PlannerOptions options;
  Pricer declared;
  Pricer calibrated;
  Pricer& pricer;  ///< Whose prices count.
  const bool reduces_in_one_pass;
  std::unordered_map<Key, std::unique_ptr<Decision>> decisions;
};

/// The order of what is fastest by declared figures; empty where all candidates have the same, or
/// the prices are the declared ones.
std::string Planner::State::CanonicalOrder(const PlanRequest& request, std::uint64_t bytes) {
  if (&pricer == &declared || !Reduces(request.collective) || request.in_one_pass) return "";
  std::vector<Candidate> candidates;
  const Placement& placement = declared.topology().placement();
  for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
    if (algorithm.collective != request.collective) continue;
    if (!algorithm.serves(placement)) continue;
    const Result<double> price = declared.Price(algorithm, bytes, request.root);
    if (!price.ok()) continue;
    candidates.emplace_back();
    candidates.back().algorithm = &algorithm;
    candidates.back().seconds = price.value();
  }
  if (candidates.empty()) return "";
  return std::string(OrderOf(*Simplest(candidates)->algorithm, placement));
}

Status Planner::State::TakeForced(const NamedAlgorithm& forced, const PlanRequest& request,
                                  Decision& decision) {
  const Result<double> price = pricer.Price(forced, decision.priced_bytes, request.root);
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

Status Planner::State::TakeFastest(const PlanRequest& request, const Watch& watch,
                                   Decision& decision) {
  const Placement& placement = pricer.topology().placement();
  const std::string canonical = CanonicalOrder(request, decision.priced_bytes);
  std::vector<Candidate> excluded;
  const NamedAlgorithm* unpriced = nullptr;
  for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
    if (algorithm.collective != request.collective) continue;
    if (!algorithm.serves(placement)) continue;
    if (watch) watch(algorithm);
    Candidate candidate;
    candidate.algorithm = &algorithm;
    if (const std::string_view unfit = Unfitness(algorithm, placement, request); !unfit.empty()) {
      candidate.excluded = unfit;
    } else if (!canonical.empty() && OrderOf(algorithm, placement) != canonical) {
      candidate.excluded = kAnotherOrder;
    } else if (Result<double> price = pricer.Price(algorithm, decision.priced_bytes, request.root);
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
  const double best = decision.candidates.front().seconds;
  const Candidate* chosen = Simplest(decision.candidates);
  const std::string_view order = OrderOf(*chosen->algorithm, placement);
  decision.reason = (chosen->seconds == best ? "fastest of " : "as fast as any of ") +
                    std::to_string(decision.candidates.size()) + " candidates";
  for (const Candidate& candidate : decision.candidates) {
    if (candidate.measured_seconds == 0) continue;
    if (Reduces(request.collective) && OrderOf(*candidate.algorithm, placement) != order) continue;
    if (chosen->measured_seconds == 0 ||
        candidate.measured_seconds * kAsGood < chosen->measured_seconds) {
      chosen = &candidate;
      decision.reason = "fastest as measured";
    }
  }
  decision.algorithm = chosen->algorithm;
  decision.candidates.insert(decision.candidates.end(), excluded.begin(), excluded.end());
  return Status();
}

Result<Decision> Planner::State::Make(const PlanRequest& request, const Watch& watch) {
  Decision decision;
  decision.priced_bytes = MiddleOf(SizeClass(request.bytes));
  const Topology& topology = pricer.topology();
  decision.bound = BoundFor(
      topology, request.collective,
      BlockSizesOf(request.collective, decision.priced_bytes, topology.ranks()), request.root);
  const auto choice = options.forced.find(request.collective);
  const NamedAlgorithm* const forced =
      choice == options.forced.end() ? nullptr : FindAlgorithm(choice->first, choice->second);
  const std::string_view unfit =
      forced != nullptr ? Unfitness(*forced, topology.placement(), request) : "";
  const bool is_set_aside = !unfit.empty();
  if (forced != nullptr && !is_set_aside) {
    if (watch) watch(*forced);
    TIDEGATE_RETURN_IF_ERROR(TakeForced(*forced, request, decision));
  } else {
    TIDEGATE_RETURN_IF_ERROR(TakeFastest(request, watch, decision));
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
                       std::string(unfit) +
                       (unfit == kSeveralPasses ? ", and this call takes one"
                                                : ", and those of this call may differ");
  return decision;
}

Planner::Planner(std::unique_ptr<State> state) : state_(std::move(state)) {}
Planner::Planner(Planner&&) noexcept = default;
Planner::~Planner() = default;

Result<Planner> Planner::Make(const Topology& topology, PlannerOptions options) {
  TIDEGATE_RETURN_IF_ERROR(CheckChoices(options.forced, topology.placement()));
  if (options.calibrated != nullptr && !(options.calibrated->placement() == topology.placement()))
    return Status(StatusCode::kInvalidArgument,
                  "the calibrated machine places its ranks otherwise than the declared one");
  return Planner(std::make_unique<State>(topology, std::move(options)));
}

Result<const Decision*> Planner::Decide(const PlanRequest& asked, const Watch& watch) {
  PlanRequest request = asked;
  if (state_->reduces_in_one_pass && Reduces(request.collective) &&
      !state_->options.forced.contains(request.collective))
    request.in_one_pass = true;
  if (request.root < 0 || request.root >= state_->pricer.topology().ranks())
    return Status(StatusCode::kInvalidArgument,
                  "root " + std::to_string(request.root) + " is outside [0, " +
                      std::to_string(state_->pricer.topology().ranks()) + ")");
  const State::Key key = (static_cast<State::Key>(request.root) << 32) |
                         (static_cast<State::Key>(SizeClass(request.bytes)) << 16) |
                         (static_cast<State::Key>(request.collective) << 2) |
                         (request.uneven ? 2U : 0U) | (request.in_one_pass ? 1U : 0U);
  std::unique_ptr<Decision>& decision = state_->decisions[key];
  if (decision == nullptr) {
    Result<Decision> made = state_->Make(request, watch);
    if (!made.ok()) return made.status();
    decision = std::make_unique<Decision>(std::move(made).value());
  }
  return decision.get();
}

Result<double> Planner::Price(const NamedAlgorithm& algorithm, std::uint64_t bytes, int root) {
  return state_->pricer.Price(algorithm, bytes, root);
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
