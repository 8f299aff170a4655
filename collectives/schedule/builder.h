#pragma once

#include <string>
#include <utility>
#include <vector>

#include "collectives/schedule/schedule.h"

namespace tidegate {

/// Writes a Schedule step by step, in the order of execution within one iteration. For algorithms.
class ScheduleBuilder {
 public:
  ScheduleBuilder(std::string name, Collective collective, int rank, int ranks) {
    schedule_.name = std::move(name);
    schedule_.collective = collective;
    schedule_.rank = rank;
    schedule_.ranks = ranks;
  }

  ScheduleBuilder& Root(int root) {
    schedule_.root = root;
    return *this;
  }
  ScheduleBuilder& SubSlots(int sub_slots) {
    schedule_.sub_slots = sub_slots;
    return *this;
  }
  ScheduleBuilder& Parts(int parts) {
    schedule_.parts = parts;
    return *this;
  }
  ScheduleBuilder& Period(int period) {
    schedule_.period = period;
    return *this;
  }
  /// Only for calls of equal blocks.
  ScheduleBuilder& Even() {
    schedule_.even = true;
    return *this;
  }
  /// Steps added from here on have this lag.
  ScheduleBuilder& Lag(int lag) {
    lag_ = lag;
    return *this;
  }

  /// Steps added from here on are staging.
  ScheduleBuilder& Staging(bool staging = true) {
    staging_ = staging;
    return *this;
  }

  /// `extent` gives the length; it is the caller's block among the two.
  void Copy(Slice dst, Slice src) { Move(StepKind::kCopy, dst, src); }
  void Get(Slice dst, Slice src) { Move(StepKind::kGet, dst, src); }
  /// `dst` is of the stage of another rank.
  void Put(Slice dst, Slice src) {
    Move(StepKind::kPut, dst, src);
    schedule_.steps.back().peer = dst.owner;
  }
  /// A move whose lengths are those of blocks that are neither its source nor its destination.
  void MoveWhile(StepKind kind, Slice dst, Slice src, Slice extent) {
    Move(kind, dst, src);
    schedule_.steps.back().extent = extent;
    if (kind == StepKind::kPut) schedule_.steps.back().peer = dst.owner;
  }

  /// `partial`: more contributions are to come elsewhere.
  void Reduce(Slice dst, const std::vector<Operand>& operands, Slice extent, bool partial = false) {
    Step step = Make(StepKind::kReduce, extent);
    step.partial = partial;
    step.dst = dst;
    step.first_operand = static_cast<int>(schedule_.operands.size());
    step.operand_count = static_cast<int>(operands.size());
    schedule_.operands.insert(schedule_.operands.end(), operands.begin(), operands.end());
    schedule_.steps.push_back(step);
  }

  /// Tells `peer` that this rank reached chunk c at `mark`, for each c with chunk c + guard in
  /// `extent`.
  void Signal(Mark mark, Slice extent, int guard = 0, int peer = kAllPeers) {
    Step step = Make(StepKind::kSignal, extent);
    step.peer = peer;
    step.mark = mark;
    step.guard_offset = static_cast<std::int8_t>(guard);
    schedule_.steps.push_back(step);
  }

  /// Waits until `peer` (or all) reached chunk c + offset at `mark`, for each chunk c of `extent`.
  /// `guard` as for Signal, for what is signalled with one.
  void Wait(int peer, Mark mark, Slice extent, int offset = 0, int guard = 0) {
    Step step = Make(StepKind::kWait, extent);
    step.guard_offset = static_cast<std::int8_t>(guard);
    step.peer = peer;
    step.mark = mark;
    step.wait_offset = static_cast<std::int8_t>(offset);
    schedule_.steps.push_back(step);
  }

  Schedule Build() { return std::move(schedule_); }

 private:
  Step Make(StepKind kind, Slice extent) const {
    Step step;
    step.kind = kind;
    step.lag = lag_;
    step.staging = staging_;
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
  bool staging_ = false;
};

/// Offset, for waits, of the chunk that must have been read before chunk c is staged.
inline constexpr int kPreviousInSlot = -kChunksInFlight;

}  // namespace tidegate
