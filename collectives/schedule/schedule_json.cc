#include "collectives/schedule/schedule_json.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "collectives/schedule/check_schedule.h"
#include "collectives/schedule/schedule_words.h"
#include "common/json/json_view.h"

namespace tidegate {
namespace {

using namespace schedule_words;  // NOLINT(google-build-using-namespace): this file's own words

constexpr std::int64_t kVersion = 1;

// Words and names have no characters that JSON escapes (FindFault).
std::string Text(std::string_view key, std::string_view value) {
  return ", \"" + std::string(key) + "\": \"" + std::string(value) + "\"";
}
std::string Number(std::string_view key, std::int64_t value) {
  return ", \"" + std::string(key) + "\": " + std::to_string(value);
}

std::string StepJson(const Schedule& schedule, const Step& step) {
  std::string text = "{\"do\": \"" + std::string(KindWord(step)) + "\"";
  if (step.lag != 0) text += Number("lag", step.lag);
  if (step.kind == StepKind::kSignal || step.kind == StepKind::kWait) {
    if (step.peer != kAllPeers) text += Number("peer", step.peer);
    text += Number("mark", step.mark);
    if (step.kind == StepKind::kWait) text += Text("chunk", ChunkWord(step.wait_offset));
  } else {
    text += Text("dst", SliceWord(step.dst));
    if (step.kind == StepKind::kReduce) {
      std::string operands;
      for (int i = 0; i < step.operand_count; ++i)
        operands += (i == 0 ? "\"" : ", \"") +
                    OperandWord(schedule.operands.at(static_cast<std::size_t>(step.first_operand) +
                                                     static_cast<std::size_t>(i))) +
                    "\"";
      text += ", \"operands\": [" + operands + "]";
    } else {
      text += Text("src", SliceWord(step.src));
    }
  }
  text += Text("while", SliceWord(step.extent));
  if (step.guard_offset != 0) text += Text("has", ChunkWord(step.guard_offset));
  if (step.staging) text += Text("unless", "resident");
  return text + "}";
}

/// The word at `view`, as `read` understands it.
template <typename T>
Status ReadWord(const JsonView& view, std::string_view expected,
                bool (*read)(std::string_view word, T& result), T& result) {
  const auto* const word = view.json().get_ptr<const std::string*>();
  if (word != nullptr && read(*word, result)) return Status();
  std::string found =
      view.json().is_structured()
          ? "an object or array"
          : view.json().dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (found.size() > 60) found = found.substr(0, 60) + "...";
  return view.Bad(found + ": expected " + std::string(expected));
}

template <typename T>
Status ReadWord(const JsonView& parent, std::string_view key, std::string_view expected,
                bool (*read)(std::string_view word, T& result), T& result) {
  if (!parent.has(key)) return parent.Bad("the key \"" + std::string(key) + "\" is missing");
  return ReadWord(parent.at(key), expected, read, result);
}

/// A number that fits the field; FindFault knows the narrower range.
Status ReadNumber(const JsonView& parent, std::string_view key, std::int32_t& number,
                  bool is_required = true) {
  std::int64_t read = number;
  TIDEGATE_RETURN_IF_ERROR(is_required ? parent.Read(key, read, INT32_MIN, INT32_MAX)
                                       : parent.ReadOptional(key, read, INT32_MIN, INT32_MAX));
  number = static_cast<std::int32_t>(read);
  return Status();
}

bool ReadUnless(std::string_view word, bool& staging) {
  staging = word == "resident";
  return staging;
}

Status ReadMarkStep(const JsonView& view, Step& step) {
  const bool waits = step.kind == StepKind::kWait;
  TIDEGATE_RETURN_IF_ERROR(
      waits ? view.CheckObject({"do", "lag", "peer", "mark", "chunk", "while", "has", "unless"})
            : view.CheckObject({"do", "lag", "peer", "mark", "while", "has", "unless"}));
  if (view.has("peer")) {
    const JsonView peer = view.at("peer");
    if (peer.json().is_string()) {
      TIDEGATE_RETURN_IF_ERROR(ReadWord(peer, kAnyPeer, ReadPeer, step.peer));
    } else {
      TIDEGATE_RETURN_IF_ERROR(ReadNumber(view, "peer", step.peer));
    }
  }
  TIDEGATE_RETURN_IF_ERROR(ReadNumber(view, "mark", step.mark));
  return waits ? ReadWord(view, "chunk", kAnyChunk, ReadChunk, step.wait_offset) : Status();
}

Status ReadMoveStep(const JsonView& view, Step& step, std::vector<Operand>& operands) {
  const bool reduces = step.kind == StepKind::kReduce;
  TIDEGATE_RETURN_IF_ERROR(
      reduces ? view.CheckObject({"do", "lag", "dst", "operands", "while", "has"})
              : view.CheckObject({"do", "lag", "dst", "src", "while", "has", "unless"}));
  TIDEGATE_RETURN_IF_ERROR(ReadWord(view, "dst", kAnySlice, ReadSlice, step.dst));
  if (step.kind == StepKind::kPut) step.peer = step.dst.owner;
  if (!reduces) return ReadWord(view, "src", kAnySlice, ReadSlice, step.src);
  if (!view.has("operands")) return view.Bad("the key \"operands\" is missing");
  const JsonView list = view.at("operands");
  TIDEGATE_RETURN_IF_ERROR(list.CheckArray());
  step.first_operand = static_cast<std::int32_t>(operands.size());
  step.operand_count = static_cast<std::int32_t>(list.size());
  for (std::size_t i = 0; i < list.size(); ++i)
    TIDEGATE_RETURN_IF_ERROR(
        ReadWord(list.at(i), kAnyOperand, ReadOperand, operands.emplace_back()));
  return Status();
}

Status ReadStep(const JsonView& view, Schedule& schedule) {
  if (!view.json().is_object()) return view.CheckObject({});
  Step step;
  TIDEGATE_RETURN_IF_ERROR(ReadWord(view, "do", kAnyKind, ReadKind, step));
  TIDEGATE_RETURN_IF_ERROR(step.kind == StepKind::kSignal || step.kind == StepKind::kWait
                               ? ReadMarkStep(view, step)
                               : ReadMoveStep(view, step, schedule.operands));
  TIDEGATE_RETURN_IF_ERROR(ReadNumber(view, "lag", step.lag, /*is_required=*/false));
  TIDEGATE_RETURN_IF_ERROR(ReadWord(view, "while", kAnyExtent, ReadSlice, step.extent));
  if (view.has("has"))
    TIDEGATE_RETURN_IF_ERROR(ReadWord(view, "has", kAnyChunk, ReadChunk, step.guard_offset));
  if (view.has("unless"))
    TIDEGATE_RETURN_IF_ERROR(ReadWord(view, "unless", "resident", ReadUnless, step.staging));
  schedule.steps.push_back(step);
  return Status();
}

Status ReadSchedule(const JsonView& root, Schedule& schedule) {
  TIDEGATE_RETURN_IF_ERROR(
      root.CheckObject({"tidegate_schedule", "collective", "name", "rank", "ranks", "root",
                        "sub_slots", "parts", "period", "even", "steps"}));
  std::int64_t version = 0;
  TIDEGATE_RETURN_IF_ERROR(root.Read("tidegate_schedule", version, kVersion, kVersion));
  TIDEGATE_RETURN_IF_ERROR(
      ReadWord(root, "collective", kAnyCollective, ReadCollective, schedule.collective));
  TIDEGATE_RETURN_IF_ERROR(root.Read("name", schedule.name));
  TIDEGATE_RETURN_IF_ERROR(ReadNumber(root, "rank", schedule.rank));
  TIDEGATE_RETURN_IF_ERROR(ReadNumber(root, "ranks", schedule.ranks));
  if (IsRooted(schedule.collective) || root.has("root"))
    TIDEGATE_RETURN_IF_ERROR(ReadNumber(root, "root", schedule.root));
  TIDEGATE_RETURN_IF_ERROR(ReadNumber(root, "sub_slots", schedule.sub_slots));
  TIDEGATE_RETURN_IF_ERROR(ReadNumber(root, "parts", schedule.parts));
  TIDEGATE_RETURN_IF_ERROR(ReadNumber(root, "period", schedule.period));
  TIDEGATE_RETURN_IF_ERROR(root.ReadOptional("even", schedule.even));
  if (!root.has("steps")) return root.Bad("the key \"steps\" is missing");
  const JsonView steps = root.at("steps");
  TIDEGATE_RETURN_IF_ERROR(steps.CheckArray());
  for (std::size_t i = 0; i < steps.size(); ++i)
    TIDEGATE_RETURN_IF_ERROR(ReadStep(steps.at(i), schedule));
  const std::optional<ScheduleFault> fault = FindFault(schedule);
  if (!fault) return Status();
  return fault->step < 0 ? root.Bad(fault->what)
                         : steps.at(static_cast<std::size_t>(fault->step)).Bad(fault->what);
}

}  // namespace

std::string ToJson(const Schedule& schedule) {
  std::string text = "{\"tidegate_schedule\": " + std::to_string(kVersion) +
                     Text("collective", NameOf(schedule.collective)) + Text("name", schedule.name) +
                     Number("rank", schedule.rank) + Number("ranks", schedule.ranks);
  if (schedule.root >= 0) text += Number("root", schedule.root);
  text += Number("sub_slots", schedule.sub_slots) + Number("parts", schedule.parts) +
          Number("period", schedule.period) + (schedule.even ? ", \"even\": true" : "") +
          ",\n\"steps\": [";
  for (std::size_t i = 0; i < schedule.steps.size(); ++i)
    text += (i == 0 ? "\n" : ",\n") + StepJson(schedule, schedule.steps[i]);
  return text + "]}\n";
}

Result<Schedule> ParseScheduleJson(std::string_view text, const JsonLimits& limits) {
  Result<nlohmann::json> parsed = ParseJson(text, limits);
  if (!parsed.ok()) return parsed.status();
  Schedule schedule;
  TIDEGATE_RETURN_IF_ERROR(ReadSchedule(JsonView(parsed.value()), schedule));
  return schedule;
}

}  // namespace tidegate
