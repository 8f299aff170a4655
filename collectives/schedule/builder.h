#pragma once

#include <utility>
#include <vector>

#include "collectives/schedule/schedule.h"

namespace tidegate {

/// Writes a Schedule step by step, in the order of execution within one iteration. For algorithms.
class ScheduleBuilder {
 public:
  ScheduleBuilder(const char* name, Collective collective, int rank, int ranks) {
    schedule_.name = name;
    schedule_.collective = collective;
    schedule_.rank = rank;
    schedule_.ranks = ranks;
  }

  ScheduleBuilder& SubSlots(int sub_slots) {
    schedule_.sub_slots = sub_slots;
    return *this;
  }
  ScheduleBuilder& Parts(int parts) {
    schedule_.parts = parts;
    return *this;
  }
  /// Steps added from here on handle chunk (iteration - lag).
  ScheduleBuilder& Lag(int lag) {
    lag_ = lag;
    return *this;
  }

  /// `extent` gives the length; it is the caller's block among the two.
  void Copy(Slice dst, Slice src) { Move(StepKind::kCopy, dst, src); }
  void Get(Slice dst, Slice src) { Move(StepKind::kGet, dst, src); }

  void Reduce(Slice dst, const std::vector<Slice>& operands, Slice extent) {
    Step step = Make(StepKind::kReduce, extent);
    step.dst = dst;
    step.first_operand = static_cast<int>(schedule_.operands.size());
    step.operand_count = static_cast<int>(operands.size());
    schedule_.operands.insert(schedule_.operands.end(), operands.begin(), operands.end());
    schedule_.steps.push_back(step);
  }

  /// Tells all peers that chunk c of `channel` is done, for each c with chunk c + guard in
  /// `extent`.
  void Signal(Channel channel, Slice extent, int guard = 0) {
    Step step = Make(StepKind::kSignal, extent);
    step.channel = channel;
    step.guard_offset = static_cast<std::int8_t>(guard);
    schedule_.steps.push_back(step);
  }

  /// Waits until `peer` (or all) reached chunk c + offset, for each chunk c of `extent`.
  void Wait(int peer, Channel channel, Slice extent, int offset = 0) {
    Step step = Make(StepKind::kWait, extent);
    step.peer = static_cast<std::int16_t>(peer);
    step.channel = channel;
    step.wait_offset = static_cast<std::int8_t>(offset);
    schedule_.steps.push_back(step);
  }

  Schedule Build() { return std::move(schedule_); }

 private:
  Step Make(StepKind kind, Slice extent) const {
    Step step;
    step.kind = kind;
    step.lag = static_cast<std::int8_t>(lag_);
    step.extent = extent;
    return step;
  }

  void Move(StepKind kind, Slice dst, Slice src) {
    Step step = Make(kind, dst.buffer == Buffer::kStage ? src : dst);
    step.dst = dst;
    step.src = src;
    schedule_.steps.push_back(step);
  }

  Schedule schedule_;
  int lag_ = 0;
};

/// Offset, for waits, of the chunk that lay in the same stage slot before chunk c.
inline constexpr int kPreviousInSlot = -kStageSlots;

}  // namespace tidegate
