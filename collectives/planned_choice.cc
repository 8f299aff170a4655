#include "collectives/planned_choice.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "collectives/plan_basis.h"
#include "common/fork_generation.h"

namespace tidegate {
namespace {

/// A planner with what it refers to.
struct SharedPlanner {
  explicit SharedPlanner(PlanBasis the_basis) : basis(std::move(the_basis)) {}
  const PlanBasis basis;
  std::mutex mutex;
  std::optional<Planner> planner;  // Guarded.
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<SharedPlanner>> planners;  // Guarded.
};

/// Never destroyed: groups may be made until the process ends. A forked process starts with an
/// empty one, since another thread may have held the lock.
Registry& ProcessRegistry() {
  static std::atomic<Registry*> registry{nullptr};
  static const bool forgets = [] {
    registry = new Registry;
    OnForkInChild([] { registry = new Registry; });
    return true;
  }();
  static_cast<void>(forgets);
  return *registry.load();
}

std::string KeyOf(const std::string& basis, const AlgorithmChoices& forced,
                  std::size_t slot_bytes) {
  std::string key = std::to_string(slot_bytes);
  for (const auto& [collective, algorithm] : forced)
    key += ',' + std::string(NameOf(collective)) + ':' + algorithm;
  return key + ' ' + basis;
}

Result<std::shared_ptr<SharedPlanner>> PlannerFor(const std::string& text,
                                                  const AlgorithmChoices& forced,
                                                  std::size_t slot_bytes) {
  Registry& registry = ProcessRegistry();
  const std::lock_guard lock(registry.mutex);
  std::erase_if(registry.planners, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<SharedPlanner>& known = registry.planners[KeyOf(text, forced, slot_bytes)];
  if (std::shared_ptr<SharedPlanner> shared = known.lock()) return shared;
  Result<PlanBasis> basis = ParsePlanBasis(text);
  if (!basis.ok()) return basis.status();
  const auto made = std::make_shared<SharedPlanner>(std::move(basis).value());
  Result<Planner> planner = MakePlanner(made->basis, forced, slot_bytes);
  if (!planner.ok()) return planner.status();
  made->planner.emplace(std::move(planner).value());
  known = made;
  return made;
}

}  // namespace

Result<PlanChoice> PlannedChoice(const std::string& basis, int ranks,
                                 const AlgorithmChoices& forced, std::size_t slot_bytes) {
  const Result<std::shared_ptr<SharedPlanner>> made = PlannerFor(basis, forced, slot_bytes);
  if (!made.ok()) return made.status();
  const std::shared_ptr<SharedPlanner>& shared = made.value();
  const Placement& placement = shared->basis.declared.topology.placement();
  if (placement.ranks() != ranks)
    return Status(StatusCode::kInvalidArgument,
                  "a description of " + std::to_string(placement.ranks()) +
                      " ranks for a group of " + std::to_string(ranks));
  auto choose = [shared](const PlanRequest& request) -> Result<const Algorithm*> {
    const std::lock_guard lock(shared->mutex);
    const Result<const Decision*> decision = shared->planner->Decide(request);
    if (!decision.ok()) return decision.status();
    return &decision.value()->algorithm->build;
  };
  return PlanChoice{std::move(choose), placement, shared->basis.paths};
}

}  // namespace tidegate
