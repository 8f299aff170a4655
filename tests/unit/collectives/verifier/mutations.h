#pragma once

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "collectives/schedule/schedule.h"
#include "collectives/verifier/verifier.h"

namespace tidegate::testing {

/// Ways to spoil one program of a group. None is applied where it is certain beforehand that
/// nothing is spoilt: waits and signals are not repeated, which says the same twice; they are only
/// moved to where they order less (a wait later, a signal earlier), for to order more does no harm;
/// and left alone are signals that no wait listens to, or only waits that other waits imply, those
/// waits, and the place of steps that have to do with no other rank.
enum class MutationKind {
  kDropMove,
  kDropReduce,
  kDropSignal,
  kDropWait,
  kDuplicateMove,
  kDuplicateReduce,
  kReorder,      ///< A wait behind what it guards, a signal before what it tells of.
  kRetarget,     ///< Another peer, or another owner of a stage.
  kResize,       ///< A block more or less, in all slices of a step.
  kMoveSlice,    ///< Another block or sub-slot in one slice.
  kShiftOffset,  ///< Of the chunk waited for.
  kShiftGuard,
  kShiftLag,
  kShiftMark,
  kSwapOperands,
  kDropOperand,
  kRepeatOperand,
  kContributor,
  kPartial,
  kStaging,  ///< A step that resident ranks leave out, or one that they do not.
  kOrigin,   ///< Another input that a slice may be read from, or none.
};
inline constexpr int kMutationKinds = static_cast<int>(MutationKind::kOrigin) + 1;
const char* NameOf(MutationKind kind);

/// Spoils one of `group`, the programs of all ranks; what was done, or none where `kind` finds
/// nothing to do on the rank drawn. `implied`: the waits that others imply.
std::optional<std::string> Mutate(MutationKind kind, std::vector<Schedule>& group,
                                  const std::vector<Report::StepOf>& implied, std::mt19937& random);

}  // namespace tidegate::testing
