#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "collectives/schedule/schedule.h"
#include "common/status.h"

namespace tidegate {

/// The most that a schedule may have. Far above what any algorithm emits at kRanks, and low enough
/// that whoever sizes memory by a schedule's numbers is safe.
struct ScheduleLimits {
  static constexpr int kRanks = 1 << 20;
  static constexpr std::size_t kSteps = std::size_t{1} << 22;
  static constexpr std::size_t kOperands = std::size_t{1} << 23;
  /// Moved or reduced in one iteration, every operand counted.
  static constexpr std::int64_t kBlocks = std::int64_t{1} << 27;
  static constexpr int kParts = kRanks;
  static constexpr int kSubSlots = 1 << 24;
  static constexpr int kMarks = 1 << 23;
  static constexpr int kLag = 1 << 22;
  static constexpr int kPeriod = 1 << 20;
  static constexpr std::size_t kNameBytes = 64;
};

/// What is wrong with a schedule, and where.
struct ScheduleFault {
  std::int64_t step = -1;  ///< Index in Schedule.steps; -1: what stands before them.
  std::string what;
};

/// The first thing for which a schedule must not be run, whoever wrote it: after this, for blocks
/// of any sizes that fit its collective, no step reads or writes beyond a block of the caller, a
/// sub-slot of a stage, or an operand, or waits for a rank that there is not. In detail: ranks,
/// peers, owners and contributors are of the group; slices end within the blocks and sub-slots that
/// there are; a step's blocks are as long as those of its extent; only output and stage are
/// written, and each kind moves what its name says; origins are inputs that their owners have, and
/// only copies of inputs, and marks and waits, are left out by resident ranks; fields that a kind
/// does not use have their defaults and operands are in the order of their steps, so that equal
/// programs are equal values; nothing exceeds ScheduleLimits. What it leaves to the verifier, which
/// sees all ranks: who is on whose node, deadlocks, races and the result. Cost: one look at each
/// step and operand.
std::optional<ScheduleFault> FindFault(const Schedule& schedule);

/// FindFault as kInvalidArgument, naming algorithm, rank and step.
Status CheckSchedule(const Schedule& schedule);

}  // namespace tidegate
