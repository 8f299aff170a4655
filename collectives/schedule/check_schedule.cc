#include "collectives/schedule/check_schedule.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "collectives/schedule/schedule_words.h"

namespace tidegate {
namespace {

using Limits = ScheduleLimits;
using schedule_words::KindWord;
using schedule_words::SliceWord;

std::string RangeText(std::int64_t least, std::int64_t most) {
  return std::to_string(least) + " to " + std::to_string(most);
}

/// "" or why `value`, called `name`, is none of least .. most.
std::string OutsideText(std::string_view name, std::int64_t value, std::int64_t least,
                        std::int64_t most) {
  if (value >= least && value <= most) return "";
  return std::string(name) + " is " + std::to_string(value) + ", and must be " +
         RangeText(least, most);
}

/// Looks at one schedule. Each function returns what is wrong, "" if nothing is.
class Checker {
 public:
  explicit Checker(const Schedule& schedule) : schedule_(schedule), blocks_(BlocksOf(schedule)) {}

  std::string CheckHeader() const {
    const std::string_view name = schedule_.name;
    const bool is_word =
        !name.empty() && name.size() <= Limits::kNameBytes && std::ranges::all_of(name, [](char c) {
          return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                 c == '_' || c == '-' || c == '.';
        });
    if (!is_word)
      return "the name of the algorithm must have 1 to " + std::to_string(Limits::kNameBytes) +
             " letters, digits, _, - and .";
    if (static_cast<unsigned>(schedule_.collective) >= kCollectives)
      return "there is no collective " + std::to_string(static_cast<int>(schedule_.collective));
    const bool is_rooted = IsRooted(schedule_.collective);
    const bool has_parts = schedule_.collective == Collective::kAllReduce ||
                           schedule_.collective == Collective::kBroadcast ||
                           schedule_.collective == Collective::kReduce;
    for (const std::string& wrong :
         {OutsideText("ranks", schedule_.ranks, 1, Limits::kRanks),
          OutsideText("rank", schedule_.rank, 0, schedule_.ranks - 1),
          OutsideText("root", schedule_.root, is_rooted ? 0 : -1,
                      is_rooted ? schedule_.ranks - 1 : -1),
          OutsideText("sub_slots", schedule_.sub_slots, 1, Limits::kSubSlots),
          OutsideText("parts", schedule_.parts, 1, has_parts ? Limits::kParts : 1),
          OutsideText("period", schedule_.period, 1, Limits::kPeriod)})
      if (!wrong.empty()) return wrong;
    const bool may_be_even = schedule_.collective == Collective::kAllToAll ||
                             schedule_.collective == Collective::kGather ||
                             schedule_.collective == Collective::kScatter;
    if (schedule_.even && !may_be_even) return "even is of all_to_all, gather and scatter alone";
    if (schedule_.steps.size() > Limits::kSteps)
      return std::to_string(schedule_.steps.size()) + " steps; there may be " +
             std::to_string(Limits::kSteps);
    if (schedule_.operands.size() > Limits::kOperands)
      return std::to_string(schedule_.operands.size()) + " operands; there may be " +
             std::to_string(Limits::kOperands);
    return "";
  }

  /// REQUIRES: the header is right, and so are the steps before this one.
  std::string CheckStep(const Step& step) {
    if (static_cast<unsigned>(step.kind) > static_cast<unsigned>(StepKind::kWait))
      return "there is no step of kind " + std::to_string(static_cast<int>(step.kind));
    for (const std::string& wrong : {OutsideText("lag", step.lag, 0, Limits::kLag),
                                     OutsideText("the offset of the chunk that must exist",
                                                 step.guard_offset, -INT8_MAX, INT8_MAX),
                                     CheckUnused(step)})
      if (!wrong.empty()) return wrong;
    if (step.kind == StepKind::kSignal || step.kind == StepKind::kWait) return CheckMark(step);
    std::string wrong = CheckMove(step);
    if (!wrong.empty()) return wrong;
    const bool reduces = step.kind == StepKind::kReduce;
    moved_ += static_cast<std::int64_t>(step.dst.count) * (reduces ? step.operand_count : 1);
    if (moved_ > Limits::kBlocks)
      return "up to here one iteration moves " + std::to_string(moved_) +
             " blocks; a schedule may move " + std::to_string(Limits::kBlocks);
    return reduces ? CheckOperands(step) : CheckSource(step);
  }

  /// Operands that no step takes.
  bool HasMoreOperands() const { return next_operand_ != schedule_.operands.size(); }

 private:
  /// Fields that a step of its kind does not look at.
  static std::string CheckUnused(const Step& step) {
    const Step none;
    const bool waits = step.kind == StepKind::kWait;
    const bool marks = waits || step.kind == StepKind::kSignal;
    const bool reduces = step.kind == StepKind::kReduce;
    const bool puts = step.kind == StepKind::kPut;
    const bool may_stage = marks || step.kind == StepKind::kCopy;
    const bool is_plain =
        (may_stage || !step.staging) &&
        (reduces || (!step.partial && step.first_operand == 0 && step.operand_count == 0)) &&
        (marks || (step.mark == none.mark && (puts || step.peer == none.peer))) &&
        (waits || step.wait_offset == none.wait_offset) && (!marks || step.dst == none.dst) &&
        ((!marks && !reduces) || step.src == none.src);
    if (!is_plain)
      return "a field that " + std::string(KindWord(step)) + " does not use is set; leave it out";
    return "";
  }

  std::string CheckMark(const Step& step) {
    if (step.peer == schedule_.rank)
      return "peer " + std::to_string(step.peer) + " is the rank itself";
    for (const std::string& wrong :
         {step.peer == kAllPeers ? "" : OutsideText("peer", step.peer, 0, schedule_.ranks - 1),
          OutsideText("mark", step.mark, 0, Limits::kMarks - 1),
          OutsideText("the offset of the chunk waited for", step.wait_offset, -INT8_MAX, INT8_MAX),
          step.extent == kLongestBlock ? "" : CheckCallers("the extent", step.extent)})
      if (!wrong.empty()) return wrong;
    if (step.kind == StepKind::kWait) return "";
    // A resident rank raises the word at once: it must mean nothing else.
    const auto [entry, is_new] = staging_marks_.try_emplace(step.mark, step.staging);
    if (!is_new && entry->second != step.staging)
      return "mark " + std::to_string(step.mark) +
             " is signalled both for what is staged unless the rank is resident and for else";
    return "";
  }

  std::string CheckMove(const Step& step) const {
    for (const std::string& wrong :
         {CheckCallers("the extent", step.extent), CheckSlice("the destination", step.dst),
          CheckLength("the destination", step.dst, step.extent)})
      if (!wrong.empty()) return wrong;
    if (step.staging && (step.dst.buffer != Buffer::kStage || step.dst.owner != schedule_.rank ||
                         step.dst.count != 1 || step.src.buffer != Buffer::kInput))
      return "unless resident: the rank copies one input into its own stage, not " +
             SliceWord(step.src) + " into " + SliceWord(step.dst);
    if (step.dst.origin >= 0)
      return "the destination " + SliceWord(step.dst) +
             " is written: only what is read has an "
             "origin";
    if (step.dst.buffer == Buffer::kInput)
      return "the destination " + SliceWord(step.dst) + " is an input, which is only read";
    const bool is_remote = step.dst.buffer == Buffer::kStage && step.dst.owner != schedule_.rank;
    if (step.kind == StepKind::kPut) {
      if (!is_remote)
        return "put writes the stage of another rank, not " + SliceWord(step.dst) + "; use copy";
      if (step.peer != step.dst.owner)
        return "the peer of a put is " + std::to_string(step.peer) + ", and must be the owner of " +
               SliceWord(step.dst);
    } else if (is_remote && step.kind != StepKind::kReduce) {
      return std::string(KindWord(step)) + " writes this rank's memory, not " +
             SliceWord(step.dst) + "; use put";
    }
    return "";
  }

  std::string CheckSource(const Step& step) const {
    for (const std::string& wrong :
         {CheckSlice("the source", step.src), CheckLength("the source", step.src, step.extent)})
      if (!wrong.empty()) return wrong;
    const bool is_remote = step.src.buffer == Buffer::kStage && step.src.owner != schedule_.rank;
    if (is_remote != (step.kind == StepKind::kGet))
      return std::string(KindWord(step)) + " reads " +
             (is_remote ? "this rank's memory, not " : "the stage of another rank, not ") +
             SliceWord(step.src);
    return "";
  }

  std::string CheckOperands(const Step& step) {
    if (step.operand_count < 1) return "a reduction needs an operand";
    const auto count = static_cast<std::size_t>(step.operand_count);
    if (step.first_operand < 0 || static_cast<std::size_t>(step.first_operand) != next_operand_ ||
        count > schedule_.operands.size() - next_operand_)
      return "its operands are " + std::to_string(count) + " from " +
             std::to_string(step.first_operand) + " on, and must be those of " +
             std::to_string(schedule_.operands.size()) + " that follow the first " +
             std::to_string(next_operand_);
    for (const std::size_t end = next_operand_ + count; next_operand_ < end; ++next_operand_) {
      const Operand& operand = schedule_.operands[next_operand_];
      for (const std::string& wrong : {CheckSlice("the operand", operand.slice),
                                       CheckLength("the operand", operand.slice, step.extent),
                                       OutsideText("the contributor of an operand",
                                                   operand.contributor, -1, schedule_.ranks - 1)})
        if (!wrong.empty()) return wrong;
    }
    return "";
  }

  /// A slice of input or output.
  std::string CheckCallers(std::string_view what, const Slice& slice) const {
    if (slice.buffer == Buffer::kStage)
      return std::string(what) + " " + SliceWord(slice) +
             " must be of input or output, whose sizes the caller gives";
    return CheckSlice(what, slice);
  }

  std::string CheckSlice(std::string_view what, const Slice& slice) const {
    const std::string word = std::string(what) + " " + SliceWord(slice);
    if (slice == kLongestBlock) return word + " must be certain blocks";
    const bool is_stage = slice.buffer == Buffer::kStage;
    if (static_cast<unsigned>(slice.buffer) > static_cast<unsigned>(Buffer::kStage))
      return std::string(what) + " is of no buffer that there is";
    if (is_stage ? slice.owner < 0 || slice.owner >= schedule_.ranks : slice.owner != -1)
      return word + ": rank " + std::to_string(slice.owner) + " is none of " +
             (is_stage ? RangeText(0, schedule_.ranks - 1) : "its own");
    if (slice.count < 1 || slice.stride < 1 || (slice.count == 1 && slice.stride != 1))
      return word + ": it needs one block, or several that ascend in steps of 1 or more";
    if (std::string wrong = CheckOrigin(slice); !wrong.empty()) return word + ": " + wrong;
    const int there = is_stage                         ? schedule_.sub_slots
                      : slice.buffer == Buffer::kInput ? blocks_.inputs
                                                       : blocks_.outputs;
    const std::int64_t last =
        slice.block + (std::int64_t{slice.count} - 1) * std::int64_t{slice.stride};
    if (slice.block < 0 || last >= there)
      return word + " reaches from " + std::to_string(slice.block) + " to " + std::to_string(last) +
             "; there are " + std::to_string(there) +
             (is_stage ? " sub-slots" : " such blocks on this rank") + ", from 0";
    return "";
  }

  std::string CheckOrigin(const Slice& slice) const {
    if (slice.origin < 0) return "";
    if (slice.buffer != Buffer::kStage || slice.owner == schedule_.rank || slice.count != 1)
      return "only one sub-slot of a peer's stage has an origin";
    // The executor knows of no other block of a peer where it begins.
    const bool is_personal = schedule_.collective == Collective::kAllToAll ||
                             schedule_.collective == Collective::kScatter;
    if (is_personal && slice.origin != schedule_.rank)
      return "a rank reads only what is meant for it where it lies";
    return OutsideText("the origin", slice.origin, 0, BlocksOf(schedule_, slice.owner).inputs - 1);
  }

  /// Whether `slice` has as many blocks as the extent, each of the same length.
  std::string CheckLength(std::string_view what, const Slice& slice, const Slice& extent) const {
    const bool fits = slice.buffer == Buffer::kStage ? slice.count == extent.count
                                                     : Sized(slice) == Sized(extent);
    if (fits) return "";
    return std::string(what) + " " + SliceWord(slice) + " need not be as long as the extent " +
           SliceWord(extent);
  }

  /// Of the blocks of the caller that have one size by the nature of the collective, always the
  /// same.
  Slice Sized(const Slice& slice) const {
    const auto is = [&](Buffer buffer, int block) {
      return slice.buffer == buffer && slice.block == block && slice.count == 1;
    };
    Slice sized = slice;
    switch (schedule_.collective) {
      case Collective::kAllGather:
        return is(Buffer::kInput, 0) ? Output(schedule_.rank) : slice;
      case Collective::kReduceScatter:
        return is(Buffer::kOutput, 0) ? Input(schedule_.rank) : slice;
      case Collective::kAllReduce:
      case Collective::kBroadcast:
      case Collective::kReduce:
        sized.buffer = Buffer::kInput;
        return sized;
      case Collective::kGather:
        return is(Buffer::kOutput, schedule_.rank) ? Input(0) : slice;
      case Collective::kScatter:
        return is(Buffer::kInput, schedule_.rank) ? Output(0) : slice;
      case Collective::kAllToAll:
        return is(Buffer::kOutput, schedule_.rank) ? Input(schedule_.rank) : slice;
      case Collective::kBarrier:
        return slice;
    }
    return slice;
  }

  const Schedule& schedule_;
  const BlockCounts blocks_;
  std::unordered_map<Mark, bool> staging_marks_;  ///< Marks signalled so far: as Step::staging.
  std::size_t next_operand_ = 0;
  std::int64_t moved_ = 0;
};

}  // namespace

std::optional<ScheduleFault> FindFault(const Schedule& schedule) {
  Checker checker(schedule);
  if (std::string wrong = checker.CheckHeader(); !wrong.empty())
    return ScheduleFault{.what = std::move(wrong)};
  for (std::size_t i = 0; i < schedule.steps.size(); ++i)
    if (std::string wrong = checker.CheckStep(schedule.steps[i]); !wrong.empty())
      return ScheduleFault{.step = static_cast<std::int64_t>(i), .what = std::move(wrong)};
  if (checker.HasMoreOperands()) return ScheduleFault{.what = "there are operands of no step"};
  return std::nullopt;
}

Status CheckSchedule(const Schedule& schedule) {
  const std::optional<ScheduleFault> fault = FindFault(schedule);
  if (!fault) return Status();
  const std::string step = fault->step < 0 ? "" : " step " + std::to_string(fault->step);
  return Status(StatusCode::kInvalidArgument, "schedule " + schedule.name.substr(0, 60) +
                                                  " of rank " + std::to_string(schedule.rank) +
                                                  step + ": " + fault->what);
}

}  // namespace tidegate
