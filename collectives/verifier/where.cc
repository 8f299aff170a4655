#include "collectives/verifier/where.h"

namespace tidegate::verifier {

std::string Program(const Schedule& schedule) {
  return std::string(NameOf(schedule.collective)) + " " + schedule.name + " rank " +
         std::to_string(schedule.rank);
}

std::string TextOf(const Schedule& schedule, std::size_t step) {
  // Alone in a schedule, so that the cost does not grow with the other steps.
  Schedule alone;
  alone.steps.push_back(schedule.steps[step]);
  const Step& it = schedule.steps[step];
  const auto first = static_cast<std::size_t>(it.first_operand);
  const auto count = static_cast<std::size_t>(it.operand_count);
  alone.steps[0].first_operand = alone.steps[0].operand_count = 0;
  if (it.kind == StepKind::kReduce && it.first_operand >= 0 && it.operand_count >= 0 &&
      first <= schedule.operands.size() && count <= schedule.operands.size() - first) {
    for (std::size_t i = first; i < first + count; ++i)
      alone.operands.push_back(schedule.operands[i]);
    alone.steps[0].operand_count = it.operand_count;
  }
  const std::string text = ToText(alone);
  const std::size_t begin = text.find_first_not_of(" \n", text.find('\n'));
  return std::to_string(step) + " (" + text.substr(begin, text.find('\n', begin) - begin) + ")";
}

std::string TextOf(const Slice& slice, int i) {
  const std::string block = "[" + std::to_string(slice.at(i)) + "]";
  switch (slice.buffer) {
    case Buffer::kInput:
      return "input" + block;
    case Buffer::kOutput:
      return "output" + block;
    case Buffer::kStage:
      return "stage(" + std::to_string(slice.owner) + ")" + block;
  }
  return "?";
}

Status Reject(const Schedule& schedule, std::size_t step, const std::string& what,
              std::int64_t chunk) {
  return Status(StatusCode::kInvalidArgument,
                Program(schedule) + ", step " + TextOf(schedule, step) +
                    (chunk < 0 ? "" : ", chunk " + std::to_string(chunk)) + ": " + what);
}

}  // namespace tidegate::verifier
