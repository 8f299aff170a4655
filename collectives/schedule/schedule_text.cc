#include "collectives/schedule/schedule_text.h"

#include <cstdint>
#include <optional>

#include "collectives/schedule/check_schedule.h"
#include "collectives/schedule/schedule_words.h"
#include "common/units.h"

namespace tidegate {
namespace {

using namespace schedule_words;  // NOLINT(google-build-using-namespace): this file's own words

std::string HeaderText(const Schedule& schedule) {
  std::string text = std::string(NameOf(schedule.collective)) + " " + schedule.name + " rank " +
                     std::to_string(schedule.rank) + " of " + std::to_string(schedule.ranks);
  if (schedule.root >= 0) text += " root " + std::to_string(schedule.root);
  return text + " sub_slots " + std::to_string(schedule.sub_slots) + " parts " +
         std::to_string(schedule.parts) + " period " + std::to_string(schedule.period) +
         (schedule.even ? " even" : "");
}

std::string StepText(const Schedule& schedule, const Step& step) {
  std::string text = "  lag " + std::to_string(step.lag) + "  " + std::string(KindWord(step)) + " ";
  switch (step.kind) {
    case StepKind::kCopy:
    case StepKind::kGet:
    case StepKind::kPut:
      text += SliceWord(step.dst) + " <- " + SliceWord(step.src);
      break;
    case StepKind::kReduce:
      text += SliceWord(step.dst) + " <-";
      for (int i = 0; i < step.operand_count; ++i)
        text +=
            " " + OperandWord(schedule.operands.at(static_cast<std::size_t>(step.first_operand) +
                                                   static_cast<std::size_t>(i)));
      break;
    case StepKind::kSignal:
      text += PeerWord(step.peer) + " mark " + std::to_string(step.mark);
      break;
    case StepKind::kWait:
      text += PeerWord(step.peer) + " mark " + std::to_string(step.mark) + " " +
              ChunkWord(step.wait_offset);
      break;
  }
  return text + "  while " + SliceWord(step.extent) + " has " + ChunkWord(step.guard_offset) +
         (step.staging ? "  unless resident" : "");
}

Status BadLine(std::size_t number, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, "line " + std::to_string(number) + ": " + what);
}

/// The words of one line. After the first that does not fit, failed() says what is wrong and
/// nothing more is read.
class Line {
 public:
  Line(std::string_view text, std::size_t number) : rest_(text), number_(number) {}

  bool ok() const { return status_.ok(); }
  /// The next word; "" at the end of the line.
  std::string_view Peek() const {
    const std::size_t begin = rest_.find_first_not_of(' ');
    if (begin == std::string_view::npos) return {};
    return rest_.substr(begin, rest_.find(' ', begin) - begin);
  }

  /// Reads a word with `read(word, result...)`.
  template <typename Read, typename... Results>
  void Get(std::string_view expected, Read&& read, Results&... results) {
    if (!status_.ok()) return;
    const std::string_view word = Peek();
    if (word.empty() || !read(word, results...)) {
      Fail(word, expected);
      return;
    }
    rest_.remove_prefix(static_cast<std::size_t>(word.data() + word.size() - rest_.data()));
  }

  void Expect(std::string_view expected) {
    Get(expected, [expected](std::string_view word) { return word == expected; });
  }
  void Number(std::string_view name, std::int32_t& number) {
    Expect(name);
    Get(kAnyNumber, ReadNumber, number);
  }

  /// Whether the whole line has been read; `text` is how it must have been written.
  Status End(std::string_view line, const std::string& text) {
    if (status_.ok() && !Peek().empty()) Fail(Peek(), "the end of the line");
    if (status_.ok() && line != text)
      status_ = BadLine(
          number_, "numbers and blanks have one form here; write \"" + text.substr(0, 200) + "\"");
    return status_;
  }

 private:
  void Fail(std::string_view word, std::string_view expected) {
    const std::string found =
        word.empty() ? "the line ends" : "\"" + std::string(word.substr(0, 60)) + "\"";
    status_ = BadLine(number_, found + ": expected " + std::string(expected));
  }

  std::string_view rest_;
  const std::size_t number_;
  Status status_;
};

bool ReadName(std::string_view word, std::string& name) {
  name = word;
  return true;
}

Status ReadHeader(std::string_view text, Schedule& schedule) {
  Line line(text, 1);
  line.Get(kAnyCollective, ReadCollective, schedule.collective);
  line.Get("the name of an algorithm", ReadName, schedule.name);
  line.Number("rank", schedule.rank);
  line.Number("of", schedule.ranks);
  if (IsRooted(schedule.collective)) line.Number("root", schedule.root);
  line.Number("sub_slots", schedule.sub_slots);
  line.Number("parts", schedule.parts);
  line.Number("period", schedule.period);
  schedule.even = line.Peek() == "even";
  if (schedule.even) line.Expect("even");
  return line.End(text, HeaderText(schedule));
}

Status ReadStep(std::string_view text, std::size_t number, Schedule& schedule) {
  Line line(text, number);
  Step step;
  line.Number("lag", step.lag);
  line.Get(kAnyKind, ReadKind, step);
  switch (step.kind) {
    case StepKind::kCopy:
    case StepKind::kGet:
    case StepKind::kPut:
      line.Get(kAnySlice, ReadSlice, step.dst);
      line.Expect("<-");
      line.Get(kAnySlice, ReadSlice, step.src);
      if (step.kind == StepKind::kPut) step.peer = step.dst.owner;
      break;
    case StepKind::kReduce:
      line.Get(kAnySlice, ReadSlice, step.dst);
      line.Expect("<-");
      step.first_operand = static_cast<std::int32_t>(schedule.operands.size());
      for (bool more = true; more;) {
        Operand operand;
        line.Get(kAnyOperand, ReadOperand, operand);
        schedule.operands.push_back(operand);
        ++step.operand_count;
        more = line.ok() && line.Peek() != "while";
      }
      break;
    case StepKind::kSignal:
    case StepKind::kWait:
      line.Get(kAnyPeer, ReadPeer, step.peer);
      line.Number("mark", step.mark);
      if (step.kind == StepKind::kWait) line.Get(kAnyChunk, ReadChunk, step.wait_offset);
      break;
  }
  line.Expect("while");
  line.Get(kAnyExtent, ReadSlice, step.extent);
  line.Expect("has");
  line.Get(kAnyChunk, ReadChunk, step.guard_offset);
  step.staging = line.ok() && line.Peek() == "unless";
  if (step.staging) {
    line.Expect("unless");
    line.Expect("resident");
  }
  schedule.steps.push_back(step);
  return line.End(text, StepText(schedule, step));
}

}  // namespace

std::string ToText(const Schedule& schedule) {
  std::string text = HeaderText(schedule) + "\n";
  for (const Step& step : schedule.steps) text += StepText(schedule, step) + "\n";
  return text;
}

Result<Schedule> ParseScheduleText(std::string_view text) {
  if (text.size() > kMaxScheduleTextBytes)
    return Status(StatusCode::kInvalidArgument,
                  "the text has " + FormatBytes(text.size()) + "; at most " +
                      FormatBytes(kMaxScheduleTextBytes) + " are read");
  Schedule schedule;
  std::size_t number = 1;
  do {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    TIDEGATE_RETURN_IF_ERROR(number == 1 ? ReadHeader(line, schedule)
                                         : ReadStep(line, number, schedule));
    if (end == std::string_view::npos) return BadLine(number, "a line break must end this line");
    text.remove_prefix(end + 1);
    ++number;
  } while (!text.empty());
  if (const std::optional<ScheduleFault> fault = FindFault(schedule))
    return BadLine(static_cast<std::size_t>(fault->step + 2), fault->what);
  return schedule;
}

}  // namespace tidegate
