#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "collectives/schedule/schedule.h"
#include "collectives/schedule/wire_claim.h"
#include "collectives/topology/placement.h"

namespace tidegate {

/// What an algorithm may look at when it emits a rank's program.
struct AlgorithmInput {
  int rank = 0;
  int ranks = 1;
  int root = 0;  ///< Rooted collectives only.
  /// Null: all ranks on one node.
  const Placement* placement = nullptr;
};

/// Emits the program of one rank, without building those of the others, and says what that puts
/// over the wire. Pure.
class Algorithm {
 public:
  using Claims = std::function<std::vector<WireClaim>(const AlgorithmInput& input)>;

  Algorithm() = default;
  template <typename Build>
    requires std::is_invocable_r_v<Schedule, const Build&, const AlgorithmInput&>
  Algorithm(Build build, Claims claims = nullptr)  // NOLINT(google-explicit-constructor)
      : build_(std::move(build)), claims_(std::move(claims)) {}

  Schedule operator()(const AlgorithmInput& input) const { return build_(input); }
  /// Whether it says what it puts over the wire; if not, the verifier holds it to nothing there.
  bool has_claims() const { return claims_ != nullptr; }

  /// For each rank of the group of `input`, as the verifier asks for them. They refer to this and
  /// to the placement.
  std::function<Schedule(int rank)> Programs(const AlgorithmInput& input) const {
    return [this, input](int rank) { return build_(OfRank(input, rank)); };
  }
  /// Null without claims.
  std::function<std::vector<WireClaim>(int rank)> ClaimsFor(const AlgorithmInput& input) const {
    if (!has_claims()) return nullptr;
    return [this, input](int rank) { return claims_(OfRank(input, rank)); };
  }

 private:
  static AlgorithmInput OfRank(AlgorithmInput input, int rank) {
    input.rank = rank;
    return input;
  }

  std::function<Schedule(const AlgorithmInput& input)> build_;
  Claims claims_;
};

// What is no flow (flows.h), or not one alone. One file each; the costs stand there.
Schedule AllReduceOneShot(const Placement& placement, const AlgorithmInput& input);
Schedule AllReduceColumnOneShot(const Placement& placement, const AlgorithmInput& input);
Schedule AllReduceColumnDoubling(const Placement& placement, const AlgorithmInput& input);
Schedule ReduceTwoShot(const AlgorithmInput& input);
Schedule GatherDirect(const Placement& placement, const AlgorithmInput& input);
Schedule GatherColumn(const Placement& placement, const AlgorithmInput& input);
Schedule ScatterDirect(const Placement& placement, const AlgorithmInput& input);
Schedule ScatterColumn(const Placement& placement, const AlgorithmInput& input);
Schedule AllToAllDirect(const AlgorithmInput& input);
Schedule AllToAllPairwise(const Placement& placement, const AlgorithmInput& input);
Schedule AllToAllColumn(const Placement& placement, const AlgorithmInput& input);
Schedule BarrierArrival(const AlgorithmInput& input);

// What those that serve several nodes claim.
std::vector<WireClaim> ClaimOfAllReduceOneShot(const Placement& placement,
                                               const AlgorithmInput& input);
std::vector<WireClaim> ClaimOfAllReduceColumnOneShot(const Placement& placement,
                                                     const AlgorithmInput& input);
std::vector<WireClaim> ClaimOfAllReduceColumnDoubling(const Placement& placement,
                                                      const AlgorithmInput& input);
std::vector<WireClaim> ClaimOfGatherDirect(const Placement& placement, const AlgorithmInput& input);
std::vector<WireClaim> ClaimOfGatherColumn(const Placement& placement, const AlgorithmInput& input);
std::vector<WireClaim> ClaimOfScatterDirect(const Placement& placement,
                                            const AlgorithmInput& input);
std::vector<WireClaim> ClaimOfScatterColumn(const Placement& placement,
                                            const AlgorithmInput& input);
std::vector<WireClaim> ClaimOfAllToAllPairwise(const Placement& placement,
                                               const AlgorithmInput& input);
std::vector<WireClaim> ClaimOfAllToAllColumn(const Placement& placement,
                                             const AlgorithmInput& input);

/// An algorithm as one names it, for example in TIDEGATE_ALGO.
struct NamedAlgorithm {
  Collective collective = Collective::kAllGather;
  std::string name;
  /// Whether it can run among ranks so placed.
  bool (*serves)(const Placement& placement) = nullptr;
  /// Whether every result among ranks so placed is one pass over the inputs of ranks 0 .. p-1:
  /// algorithms of which this is true give equal bits.
  bool (*in_one_pass)(const Placement& placement) = nullptr;
  Algorithm build;
  /// Its schedules are for calls of equal blocks (Schedule::even).
  bool even = false;
};
/// All there are, in the order in which equals are preferred.
const std::vector<NamedAlgorithm>& AllAlgorithms();
/// Null when there is none of this name.
const NamedAlgorithm* FindAlgorithm(Collective collective, std::string_view name);

}  // namespace tidegate
