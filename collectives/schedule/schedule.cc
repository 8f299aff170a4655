#include "collectives/schedule/schedule.h"

#include <algorithm>
#include <array>

namespace tidegate {
namespace {

std::string BlocksText(const Slice& slice) {
  std::string text = "[" + std::to_string(slice.block);
  if (slice.count != 1) text += "+" + std::to_string(slice.count);
  if (slice.stride != 1) text += "x" + std::to_string(slice.stride);
  return text + "]";
}

std::string SliceText(const Slice& slice) {
  if (slice == kLongestBlock) return "longest";
  switch (slice.buffer) {
    case Buffer::kInput:
      return "input" + BlocksText(slice);
    case Buffer::kOutput:
      return "output" + BlocksText(slice);
    case Buffer::kStage:
      return "stage(" + std::to_string(slice.owner) + ")" + BlocksText(slice);
  }
  return "?";
}

std::string OperandText(const Operand& operand) {
  std::string text = SliceText(operand.slice);
  if (operand.contributor >= 0) text += ":" + std::to_string(operand.contributor);
  return text;
}

std::string PeerText(int peer) { return peer == kAllPeers ? "all" : std::to_string(peer); }

std::string ChunkText(int offset) {
  if (offset == 0) return "c";
  return offset > 0 ? "c+" + std::to_string(offset) : "c-" + std::to_string(-offset);
}

std::string StepText(const Schedule& schedule, const Step& step) {
  std::string text = "  lag " + std::to_string(step.lag) + "  ";
  switch (step.kind) {
    case StepKind::kCopy:
      text += "copy " + SliceText(step.dst) + " <- " + SliceText(step.src);
      break;
    case StepKind::kGet:
      text += "get " + SliceText(step.dst) + " <- " + SliceText(step.src);
      break;
    case StepKind::kPut:
      text += "put " + SliceText(step.dst) + " <- " + SliceText(step.src);
      break;
    case StepKind::kReduce: {
      text += (step.partial ? "partial " : "reduce ") + SliceText(step.dst) + " <-";
      for (int i = step.first_operand; i < step.first_operand + step.operand_count; ++i)
        text += " " + OperandText(schedule.operands[static_cast<std::size_t>(i)]);
      break;
    }
    case StepKind::kSignal:
      text += "signal " + PeerText(step.peer) + " mark " + std::to_string(step.mark);
      break;
    case StepKind::kWait:
      text += "wait " + PeerText(step.peer) + " mark " + std::to_string(step.mark) + " " +
              ChunkText(step.wait_offset);
      break;
  }
  text += "  while " + SliceText(step.extent) + " has " + ChunkText(step.guard_offset) + "\n";
  return text;
}

}  // namespace

std::string_view NameOf(Collective collective) {
  constexpr std::array<std::string_view, kCollectives> kNames = {
      "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce",
      "gather",     "scatter",        "all_to_all", "barrier"};
  return kNames[static_cast<std::size_t>(collective)];
}

int Schedule::MaxLag() const {
  int lag = 0;
  for (const Step& step : steps) lag = std::max(lag, step.lag);
  return lag;
}

int Schedule::Marks() const {
  int marks = 0;
  for (const Step& step : steps)
    if (step.kind == StepKind::kSignal || step.kind == StepKind::kWait)
      marks = std::max(marks, step.mark + 1);
  return marks;
}

std::string ToText(const Schedule& schedule) {
  std::string text = std::string(NameOf(schedule.collective)) + " " + schedule.name + " rank " +
                     std::to_string(schedule.rank) + " of " + std::to_string(schedule.ranks) +
                     " sub_slots " + std::to_string(schedule.sub_slots) + " parts " +
                     std::to_string(schedule.parts) + " period " + std::to_string(schedule.period) +
                     "\n";
  for (const Step& step : schedule.steps) text += StepText(schedule, step);
  return text;
}

}  // namespace tidegate
