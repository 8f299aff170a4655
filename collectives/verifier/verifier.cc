#include "collectives/verifier/verifier.h"

#include <algorithm>
#include <string>
#include <utility>

#include "collectives/verifier/blocks.h"
#include "collectives/verifier/claims.h"
#include "collectives/verifier/invariance.h"
#include "collectives/verifier/machine.h"
#include "collectives/verifier/steady_state.h"
#include "collectives/verifier/structure.h"

namespace tidegate {
namespace {

using verifier::Blocks;
using verifier::CheckStructure;
using verifier::Claims;
using verifier::Machine;
using verifier::Orbit;

std::vector<Schedule> BuildAll(int count, const ScheduleOf& schedule_of) {
  std::vector<Schedule> schedules;
  schedules.reserve(static_cast<std::size_t>(count));
  for (int rank = 0; rank < count; ++rank) schedules.push_back(schedule_of(rank));
  return schedules;
}

Status CheckStructures(const Problem& problem, const std::vector<Schedule>& schedules) {
  for (std::size_t rank = 0; rank < schedules.size(); ++rank)
    TIDEGATE_RETURN_IF_ERROR(
        CheckStructure(schedules[rank], static_cast<int>(rank), schedules.front(), problem));
  return Status();
}

/// That the ranks that are not executed do what their representatives do.
/// `sources`: of the representatives' operands; null where nothing is known of them.
Status CheckOthers(const Problem& problem, const std::vector<Schedule>& schedules,
                   const std::vector<std::vector<int>>* sources, const Blocks& blocks, Orbit orbit,
                   const ScheduleOf& schedule_of) {
  if (orbit.is_trivial()) return Status();
  for (const int rank : RanksToCompare(orbit, problem.compared)) {
    const Schedule schedule = schedule_of(rank);
    TIDEGATE_RETURN_IF_ERROR(CheckStructure(schedule, rank, schedules.front(), problem));
    const auto there = static_cast<std::size_t>(orbit.RepresentativeOf(rank));
    TIDEGATE_RETURN_IF_ERROR(CheckInvariant(schedule, schedules[there],
                                            sources == nullptr ? nullptr : &(*sources)[there],
                                            blocks, orbit));
  }
  return Status();
}

/// All but the steady state, which is the same for all problems. `schedules`: of the
/// representatives, which have passed CheckStructures.
Result<Report> VerifyBuilt(const Problem& problem, const std::vector<Schedule>& schedules,
                           const ScheduleOf& schedule_of, const Claims& claims) {
  Result<Blocks> made = Blocks::Make(problem, schedules.front().parts);
  if (!made.ok()) return made.status();
  const Blocks& blocks = made.value();
  const Orbit orbit(blocks.ranks(), static_cast<int>(schedules.size()));
  TIDEGATE_RETURN_IF_ERROR(CheckSetting(problem, blocks, orbit));
  Machine machine(blocks, *problem.placement, orbit, schedules);
  const Status status = machine.Run();
  if (!status.ok()) {
    // What went wrong makes no sense where the others do something else.
    TIDEGATE_RETURN_IF_ERROR(CheckOthers(problem, schedules, nullptr, blocks, orbit, schedule_of));
    return status;
  }
  TIDEGATE_RETURN_IF_ERROR(
      CheckOthers(problem, schedules, &machine.sources(), blocks, orbit, schedule_of));
  Report report;
  machine.Fill(&report);
  TIDEGATE_RETURN_IF_ERROR(claims.Check(blocks, report, schedules));
  return report;
}

Status CheckRoom(const std::vector<Schedule>& schedules) {
  // Stages and progress words are laid out in full.
  constexpr std::int64_t kMost = 1 << 23;
  std::int64_t cells = 0;
  for (const Schedule& schedule : schedules) cells += schedule.sub_slots + schedule.Marks();
  if (cells <= kMost) return Status();
  return Status(StatusCode::kUnsupported,
                std::to_string(cells) + " sub-slots and marks are more than the " +
                    std::to_string(kMost) + " that are verified at once; give a shift");
}

Status CheckTopology(const Placement& placement, const Topology* topology) {
  if (topology == nullptr) return Status();
  bool is_same = topology->ranks() == placement.ranks();
  for (int rank = 0; is_same && rank < placement.ranks(); ++rank)
    is_same = topology->placement().node_of(rank) == placement.node_of(rank);
  if (is_same) return Status();
  return Status(StatusCode::kInvalidArgument,
                "a topology (" + topology->name() + ") that places ranks otherwise");
}

int DepthOf(const std::vector<Schedule>& schedules) {
  int depth = 0;
  for (const Schedule& schedule : schedules)
    depth = std::max(depth, schedule.MaxLag() / std::max(1, schedule.period));
  return depth;
}

}  // namespace

Result<Report> Verify(const Problem& problem, const ScheduleOf& schedule_of,
                      const ClaimOf& claim_of) {
  if (problem.placement == nullptr)
    return Status(StatusCode::kInvalidArgument, "a problem without a placement");
  const int ranks = problem.placement->ranks();
  if (problem.shift < 0 || problem.shift > ranks)
    return Status(StatusCode::kInvalidArgument, "a shift of " + std::to_string(problem.shift) +
                                                    " among " + std::to_string(ranks) + " ranks");
  const std::vector<Schedule> schedules =
      BuildAll(problem.shift > 0 ? problem.shift : ranks, schedule_of);
  TIDEGATE_RETURN_IF_ERROR(CheckStructures(problem, schedules));
  TIDEGATE_RETURN_IF_ERROR(CheckRoom(schedules));
  TIDEGATE_RETURN_IF_ERROR(CheckTopology(*problem.placement, problem.topology));
  const Claims claims(*problem.placement, static_cast<int>(schedules.size()), claim_of,
                      problem.topology);
  Result<Report> report = VerifyBuilt(problem, schedules, schedule_of, claims);
  if (report.ok())
    TIDEGATE_RETURN_IF_ERROR(
        CheckSteadyState(Orbit(ranks, static_cast<int>(schedules.size())), schedules));
  return report;
}

Result<Report> VerifyThoroughly(Collective collective, const Placement& placement, int root,
                                const ScheduleOf& schedule_of, const ClaimOf& claim_of,
                                const Topology* topology) {
  const std::vector<Schedule> schedules = BuildAll(placement.ranks(), schedule_of);
  TIDEGATE_RETURN_IF_ERROR(CheckStructures(
      {.collective = collective, .placement = &placement, .root = root, .sizes = {}}, schedules));
  TIDEGATE_RETURN_IF_ERROR(CheckRoom(schedules));
  TIDEGATE_RETURN_IF_ERROR(CheckTopology(placement, topology));
  const Claims claims(placement, placement.ranks(), claim_of, topology);
  Result<Report> first = Report();
  bool is_first = true;
  for (const Problem& problem : ProblemsFor(collective, placement, root, schedules.front().parts,
                                            DepthOf(schedules), schedules.front().even)) {
    Result<Report> report = VerifyBuilt(problem, schedules, schedule_of, claims);
    if (!report.ok()) return report;
    if (is_first) {
      first = std::move(report);
    } else {
      std::erase_if(first.value().implied_waits, [&](const Report::StepOf& wait) {
        const auto& others = report.value().implied_waits;
        return std::find(others.begin(), others.end(), wait) == others.end();
      });
    }
    is_first = false;
  }
  const int ranks = placement.ranks();
  TIDEGATE_RETURN_IF_ERROR(CheckSteadyState(Orbit(ranks, ranks), schedules));
  return first;
}

Status VerifyPlan(Collective collective, const Placement& placement, int root,
                  const ScheduleOf& schedule_of, const ClaimOf& claim_of,
                  const Topology* topology) {
  if (placement.ranks() <= kMaxFullyVerifiedRanks)
    return VerifyThoroughly(collective, placement, root, schedule_of, claim_of, topology).status();
  constexpr std::int64_t kChunk = 1024;
  // Slots repeat after kChunksInFlight chunks; that longer pipelines do not get stuck is shown for
  // any.
  Problem problem{.collective = collective,
                  .placement = &placement,
                  .root = root,
                  .chunk_bytes = kChunk,
                  .sizes = {(2 * kChunksInFlight + 1) * kChunk},
                  .shift = placement.ranks_on_largest_node(),
                  .topology = topology};
  Status status = Verify(problem, schedule_of, claim_of).status();
  if (status.ok()) return status;
  // Perhaps it is only the symmetry that is missing, or is one of switches.
  if (placement.nodes_per_switch() > 1) {
    problem.shift *= placement.nodes_per_switch();
    status = Verify(problem, schedule_of, claim_of).status();
    if (status.ok()) return status;
  }
  constexpr std::size_t kMostSteps = std::size_t{1} << 22;
  const auto ranks = static_cast<std::size_t>(placement.ranks());
  if (schedule_of(root).steps.size() > kMostSteps / ranks)
    return Status(StatusCode::kUnsupported, "too many steps to execute all of " +
                                                std::to_string(ranks) +
                                                " ranks, and by symmetry: " + status.message());
  problem.shift = 0;
  return Verify(problem, schedule_of, claim_of).status();
}

}  // namespace tidegate
