#include "collectives/verifier/structure.h"

#include <algorithm>
#include <functional>
#include <string>

#include "collectives/schedule/check_schedule.h"
#include "collectives/verifier/blocks.h"
#include "collectives/verifier/where.h"

namespace tidegate::verifier {
namespace {

std::string DifferenceOf(const char* what, int is, int should) {
  if (is == should) return "";
  return std::string("its ") + what + " is " + std::to_string(is) + ", and must be " +
         std::to_string(should);
}

std::string ProblemOfHead(const Schedule& schedule, int rank, const Schedule& first,
                          const Problem& problem) {
  if (schedule.collective != problem.collective)
    return "it is no " + std::string(NameOf(problem.collective));
  for (const std::string& wrong :
       {DifferenceOf("rank", schedule.rank, rank),
        DifferenceOf("number of ranks", schedule.ranks, problem.placement->ranks()),
        DifferenceOf("root", schedule.root, IsRooted(problem.collective) ? problem.root : -1),
        DifferenceOf("sub_slots", schedule.sub_slots, first.sub_slots),
        DifferenceOf("parts", schedule.parts, first.parts),
        DifferenceOf("period", schedule.period, first.period),
        DifferenceOf("even", schedule.even ? 1 : 0, first.even ? 1 : 0)})
    if (!wrong.empty()) return wrong;
  const std::vector<std::int64_t>& sizes = problem.sizes;
  if (schedule.even && std::ranges::adjacent_find(sizes, std::not_equal_to<>()) != sizes.end())
    return "it is for blocks of one size alone";
  return "";
}

/// The stage that `step` reads on another node, none where its owner is negative.
Slice FarSource(const Schedule& schedule, const Step& step, const Placement& placement) {
  const auto is_far = [&](const Slice& slice) {
    return slice.buffer == Buffer::kStage &&
           placement.node_of(slice.owner) != placement.node_of(schedule.rank);
  };
  if (step.kind == StepKind::kGet && is_far(step.src)) return step.src;
  if (step.kind == StepKind::kReduce)
    for (int i = step.first_operand; i < step.first_operand + step.operand_count; ++i)
      if (const Slice& slice = schedule.operands[static_cast<std::size_t>(i)].slice; is_far(slice))
        return slice;
  return {};
}

/// A step that signals a mark which another one signals, too, though not for the longest block: a
/// block more could then release a waiter earlier, and what pairs of blocks show (problems.cc)
/// would not hold for all; -1: none. Where blocks are of one size, or parts of one tensor, all are
/// tried.
int EarlierSignal(const Schedule& schedule) {
  if (schedule.even || schedule.parts > 1) return -1;
  const std::vector<Step>& steps = schedule.steps;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind != StepKind::kSignal || steps[i].extent == kLongestBlock) continue;
    for (std::size_t j = 0; j < steps.size(); ++j)
      if (j != i && steps[j].kind == StepKind::kSignal && steps[j].mark == steps[i].mark &&
          (steps[i].peer == steps[j].peer || steps[i].peer == kAllPeers ||
           steps[j].peer == kAllPeers))
        return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

Status CheckStructure(const Schedule& schedule, int rank, const Schedule& first,
                      const Problem& problem) {
  const auto reject = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument,
                  Program(schedule) + ", given for rank " + std::to_string(rank) + ": " + what);
  };
  if (const auto fault = FindFault(schedule)) {
    if (fault->step < 0) return reject(fault->what);
    return Reject(schedule, static_cast<std::size_t>(fault->step), fault->what);
  }
  if (const std::string head = ProblemOfHead(schedule, rank, first, problem); !head.empty())
    return reject(head);
  if (const int signal = EarlierSignal(schedule); signal >= 0)
    return Reject(schedule, static_cast<std::size_t>(signal),
                  "signals a mark that another step signals, too, and not for the longest block");
  const Placement& placement = *problem.placement;
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.kind == StepKind::kReduce && !Reduces(problem.collective))
      return Reject(schedule, i,
                    "reduces, which " + std::string(NameOf(problem.collective)) + " does not");
    const Slice far = FarSource(schedule, step, placement);
    if (far.owner >= 0)
      return Reject(schedule, i,
                    "reads the stage of rank " + std::to_string(far.owner) + ", which is on node " +
                        std::to_string(placement.node_of(far.owner)) + " and this rank on node " +
                        std::to_string(placement.node_of(rank)));
  }
  return Status();
}

}  // namespace tidegate::verifier
