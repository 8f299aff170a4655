#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/planner/choices.h"
#include "collectives/planner/measured_table.h"
#include "collectives/planner/pricer.h"
#include "collectives/simulator/simulator.h"
#include "collectives/topology/topology.h"
#include "common/status.h"

namespace tidegate {

/// What a plan is asked for.
struct PlanRequest {
  Collective collective = Collective::kAllGather;
  /// Of the whole tensor: the output of an all_gather, the input of a reduce_scatter, the tensor of
  /// the others; all_to_all: what one rank sends in all. Every rank must pass the same.
  std::uint64_t bytes = 0;
  int root = 0;  ///< Rooted collectives only.
  /// Only plans that reduce in one pass will do, because partial sums would lose bits (AVG of
  /// integers).
  bool in_one_pass = false;
  /// all_to_all: blocks may be of different sizes, or nothing that all ranks know says that they
  /// are not, so that plans which need equal ones will not do.
  bool uneven = false;

  bool operator==(const PlanRequest&) const = default;
};

/// An algorithm that could serve a request.
struct Candidate {
  const NamedAlgorithm* algorithm = nullptr;
  /// Predicted, for the middle of the size class; 0 for what is forced and cannot be priced.
  double seconds = 0;
  double measured_seconds = 0;  ///< Where the measured table has it; else 0.
  std::string excluded;         ///< Why it is out of question; empty: it is not.
};

/// What was chosen, and why.
struct Decision {
  const NamedAlgorithm* algorithm = nullptr;
  std::uint64_t priced_bytes = 0;     ///< The middle of the size class.
  Bound bound;                        ///< What no plan beats.
  std::vector<Candidate> candidates;  ///< Fastest first, then the excluded.
  std::string reason;                 ///< "fastest of 12 candidates, 96% of the bound"
};

struct PlannerOptions {
  LocalRates rates = {};
  /// The same machine with measured figures, whose prices then count; null: there are none. Must
  /// outlive the planner.
  const Topology* calibrated = nullptr;
  LocalRates calibrated_rates = {};
  /// Bytes of a stage slot, which with an algorithm's sub-slots gives its chunk.
  std::size_t slot_bytes = std::size_t{1} << 19;
  /// Progress words that a rank has (kMaxMarks in shared memory): what needs more cannot be run.
  int most_marks = std::numeric_limits<int>::max();
  AlgorithmChoices forced = {};
  MeasuredTable measured = {};
  /// On one node every reduction that is not forced is one pass over the ranks, whatever its size.
  bool one_pass_on_one_node = false;
};

/// Chooses algorithms for one group. Prices every algorithm that can be run on the topology by
/// simulating its schedules (pricer.h), so that a price and a simulation never disagree. Above
/// 1,024 ranks only what is alike on all nodes is priced.
///
/// What is within 2% of the fastest counts as equally fast; of equals the simplest is chosen.
///
/// Bits do not depend on measurement: for each (topology, collective, size class) the order of
/// reduction is that of the algorithm that is fastest by the topology's own figures; calibrated
/// figures and the measured table choose only among algorithms of that order.
///
/// Decisions are made once for a size class (a factor of two in bytes) and kept; look-up takes a
/// hash. Refers to the topology, which must outlive it. One thread at a time.
class Planner {
 public:
  /// kInvalidArgument for forced algorithms that the placement does not allow.
  static Result<Planner> Make(const Topology& topology, PlannerOptions options = {});
  Planner(Planner&&) noexcept;
  ~Planner();

  /// Is told which algorithm is priced next, for who waits for it: with many ranks that takes
  /// seconds each. May throw, which ends a decision that is not made then.
  using Watch = std::function<void(const NamedAlgorithm& algorithm)>;

  /// The decision for `asked`; valid as long as the planner. Where an algorithm is forced, only
  /// that one is priced, and taken even if it cannot be; it is set aside, which the reason says,
  /// for requests that it does not fit (in_one_pass, uneven). kInvalidArgument for a root that
  /// is no rank and for a forced algorithm that the stage is too small for, kUnsupported where
  /// nothing serves.
  Result<const Decision*> Decide(const PlanRequest& asked, const Watch& watch = nullptr);

  /// What Decide would say of one algorithm at exactly `bytes`, in seconds. kUnsupported for what
  /// runs but would take too long to price, kInvalidArgument for what cannot be run.
  Result<double> Price(const NamedAlgorithm& algorithm, std::uint64_t bytes, int root = 0);

  /// The class of a size: 0 for 0 bytes, k for [2^(k-1), 2^k).
  static int SizeClass(std::uint64_t bytes);

 private:
  struct State;
  explicit Planner(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// A table for people: candidates, predicted times, shares of the bound, and the reason.
std::string Explain(const Decision& decision, const PlanRequest& request);

}  // namespace tidegate
