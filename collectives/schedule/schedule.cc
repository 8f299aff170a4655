#include "collectives/schedule/schedule.h"

#include <algorithm>
#include <array>

namespace tidegate {
namespace {

std::string SliceText(const Slice& slice) {
  if (slice == kLongestBlock) return "longest";
  switch (slice.buffer) {
    case Buffer::kInput:
      return "input[" + std::to_string(slice.block) + "]";
    case Buffer::kOutput:
      return "output[" + std::to_string(slice.block) + "]";
    case Buffer::kStage:
      return "stage(" + std::to_string(slice.owner) + ")[" + std::to_string(slice.block) + "]";
  }
  return "?";
}

std::string_view ChannelText(Channel channel) {
  constexpr std::array<std::string_view, kChannels> kNames = {"ready", "result", "consumed"};
  return kNames[static_cast<std::size_t>(channel)];
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
    case StepKind::kReduce: {
      text += "reduce " + SliceText(step.dst) + " <-";
      for (int i = step.first_operand; i < step.first_operand + step.operand_count; ++i)
        text += " " + SliceText(schedule.operands[static_cast<std::size_t>(i)]);
      break;
    }
    case StepKind::kSignal:
      text += "signal " + PeerText(step.peer) + " " + std::string(ChannelText(step.channel));
      break;
    case StepKind::kWait:
      text += "wait " + PeerText(step.peer) + " " + std::string(ChannelText(step.channel)) + " " +
              ChunkText(step.wait_offset);
      break;
  }
  text += "  while " + SliceText(step.extent) + " has " + ChunkText(step.guard_offset) + "\n";
  return text;
}

}  // namespace

std::string_view NameOf(Collective collective) {
  constexpr std::array<std::string_view, 9> kNames = {"all_gather", "reduce_scatter", "all_reduce",
                                                      "broadcast",  "reduce",         "gather",
                                                      "scatter",    "all_to_all",     "barrier"};
  return kNames[static_cast<std::size_t>(collective)];
}

int Schedule::MaxLag() const {
  int lag = 0;
  for (const Step& step : steps) lag = std::max<int>(lag, step.lag);
  return lag;
}

std::string ToText(const Schedule& schedule) {
  std::string text = std::string(NameOf(schedule.collective)) + " " + schedule.name + " rank " +
                     std::to_string(schedule.rank) + " of " + std::to_string(schedule.ranks) +
                     " sub_slots " + std::to_string(schedule.sub_slots) + "\n";
  for (const Step& step : schedule.steps) text += StepText(schedule, step);
  return text;
}

}  // namespace tidegate
