#include "collectives/verified_plans.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "collectives/verifier/verifier.h"

namespace tidegate {
namespace {

struct Verdicts {
  std::mutex mutex;
  std::map<std::string, Status> of_program;
};

/// Never destroyed: groups may run until the process ends.
Verdicts& AllVerdicts() {
  static auto* const verdicts = new Verdicts;
  return *verdicts;
}

}  // namespace

Status EnsureVerified(const Algorithm& algorithm, const AlgorithmInput& input,
                      const Schedule& own) {
  const Placement placement =
      input.placement != nullptr ? *input.placement : Placement::OneNode(input.ranks);
  std::string program = ToText(own);
  // On other nodes, or below other switches, ranks with the same program may have other peers.
  if (placement.nodes() > 1) {
    for (int rank = 0; rank < placement.ranks(); ++rank)
      program += ' ' + std::to_string(placement.node_of(rank));
    program += " / " + std::to_string(placement.nodes_per_switch());
  }
  Verdicts& verdicts = AllVerdicts();
  const std::lock_guard lock(verdicts.mutex);
  if (const auto known = verdicts.of_program.find(program); known != verdicts.of_program.end())
    return known->second;
  Status verdict = VerifyPlan(own.collective, placement, input.root, algorithm.Programs(input),
                              algorithm.ClaimsFor(input));
  if (!verdict.ok())
    verdict = Status(StatusCode::kInternal,
                     "algorithm " + own.name + " failed its verification and is not run: " +
                         verdict.message() + "; choose another with TIDEGATE_ALGO and report this");
  return verdicts.of_program.emplace(std::move(program), std::move(verdict)).first->second;
}

}  // namespace tidegate
