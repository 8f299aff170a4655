#pragma once

#include "collectives/schedule/check_schedule.h"
#include "collectives/schedule/schedule_json.h"
#include "collectives/schedule/schedule_text.h"
#include "common/check.h"

namespace tidegate {

/// That whoever runs `schedule` stays within the blocks, sub-slots and operands that there are,
/// found by going through all of them where they are few.
inline void CheckAccesses(const Schedule& schedule) {
  const BlockCounts blocks = BlocksOf(schedule);
  const auto check = [&](const Slice& slice) {
    const bool is_stage = slice.buffer == Buffer::kStage;
    const int there = is_stage                         ? schedule.sub_slots
                      : slice.buffer == Buffer::kInput ? blocks.inputs
                                                       : blocks.outputs;
    TIDEGATE_CHECK(slice.count >= 1);
    for (int i = 0; i < slice.count; i = i < 1000 ? i + 1 : slice.count)
      TIDEGATE_CHECK(slice.at(i) >= 0 && slice.at(i) < there);
    TIDEGATE_CHECK(slice.at(slice.count - 1) < there);
    if (is_stage) TIDEGATE_CHECK(slice.owner >= 0 && slice.owner < schedule.ranks);
  };
  for (const Step& step : schedule.steps) {
    if (step.extent != kLongestBlock) check(step.extent);
    if (step.kind == StepKind::kSignal || step.kind == StepKind::kWait) {
      TIDEGATE_CHECK(step.mark >= 0 && step.mark < schedule.Marks());
      TIDEGATE_CHECK(step.peer >= kAllPeers && step.peer < schedule.ranks);
      continue;
    }
    TIDEGATE_CHECK(step.extent != kLongestBlock && step.extent.count == step.dst.count);
    check(step.dst);
    if (step.kind != StepKind::kReduce) {
      check(step.src);
      TIDEGATE_CHECK(step.src.count == step.dst.count);
    }
    for (int i = 0; i < step.operand_count; ++i) {
      const Operand& operand =
          schedule.operands.at(static_cast<std::size_t>(step.first_operand + i));
      check(operand.slice);
      TIDEGATE_CHECK(operand.slice.count == step.dst.count);
      TIDEGATE_CHECK(operand.contributor < schedule.ranks);
    }
  }
}

/// What holds for every schedule that a parser let through.
inline void CheckScheduleProperties(const Schedule& schedule) {
  TIDEGATE_CHECK(CheckSchedule(schedule).ok());
  CheckAccesses(schedule);
  const Result<Schedule> from_text = ParseScheduleText(ToText(schedule));
  TIDEGATE_CHECK(from_text.ok() && from_text.value() == schedule);
  const Result<Schedule> from_json = ParseScheduleJson(ToJson(schedule));
  TIDEGATE_CHECK(from_json.ok() && from_json.value() == schedule);
}

}  // namespace tidegate
