#include "tests/unit/collectives/verifier/mutations.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace tidegate::testing {
namespace {

bool IsMove(const Step& step) {
  return step.kind == StepKind::kCopy || step.kind == StepKind::kGet || step.kind == StepKind::kPut;
}
bool IsReduce(const Step& step) { return step.kind == StepKind::kReduce; }
bool IsSignal(const Step& step) { return step.kind == StepKind::kSignal; }
bool IsWait(const Step& step) { return step.kind == StepKind::kWait; }
bool MovesData(const Step& step) { return IsMove(step) || IsReduce(step); }

class Mutator {
 public:
  Mutator(std::vector<Schedule>& group, const std::vector<Report::StepOf>& implied,
          std::mt19937& random)
      : group_(group),
        implied_(implied),
        random_(random),
        rank_(Below(static_cast<int>(group.size()))) {}

  std::optional<std::string> Apply(MutationKind kind) {
    switch (kind) {
      case MutationKind::kDropMove:
        return Drop(IsMove);
      case MutationKind::kDropReduce:
        return Drop(IsReduce);
      case MutationKind::kDropSignal:
        return Drop([&](const Step& step) { return IsHeard(step); });
      case MutationKind::kDropWait:
        return Drop([&](const Step& step) { return IsNeeded(step); });
      case MutationKind::kDuplicateMove:
        return Duplicate(IsMove);
      case MutationKind::kDuplicateReduce:
        return Duplicate(IsReduce);
      case MutationKind::kReorder:
        return Reorder();
      case MutationKind::kRetarget:
        return Retarget();
      case MutationKind::kResize:
        return Resize();
      case MutationKind::kMoveSlice:
        return MoveSlice();
      case MutationKind::kShiftOffset:
        return Change([&](const Step& step) { return IsNeeded(step); },
                      [](Step& step) { --step.wait_offset; });
      case MutationKind::kShiftGuard:
        return Change([&](const Step& step) { return HasPlace(step); },
                      [](Step& step) { ++step.guard_offset; });
      case MutationKind::kShiftLag:
        return Change([&](const Step& step) { return HasPlace(step); },
                      [&](Step& step) {
                        const bool later = IsWait(step) || (!IsSignal(step) && Below(2) == 0);
                        step.lag = std::max(0, step.lag + (later ? 1 : -1));
                      });
      case MutationKind::kShiftMark:
        return Change(
            [&](const Step& step) { return IsNeeded(step) || IsHeard(step); },
            [by = Below(2) == 0 ? 1 : -1](Step& step) { step.mark = std::max(0, step.mark + by); });
      case MutationKind::kSwapOperands:
      case MutationKind::kDropOperand:
      case MutationKind::kRepeatOperand:
      case MutationKind::kContributor:
        return ChangeOperands(kind);
      case MutationKind::kPartial:
        return Change(IsReduce, [](Step& step) { step.partial = !step.partial; });
      case MutationKind::kStaging:
        // A wait that all execute does no harm, and a signal that stands for inputs does when it is
        // late: only the resident are then slower.
        return Change(
            [&](const Step& step) {
              if (step.kind == StepKind::kCopy) return HasPlace(step);
              return !step.staging && (IsNeeded(step) || IsHeard(step));
            },
            [](Step& step) { step.staging = !step.staging; });
      case MutationKind::kOrigin:
        return ChangeOrigin();
    }
    return std::nullopt;
  }

 private:
  using Filter = std::function<bool(const Step&)>;

  int Below(int end) { return static_cast<int>(random_() % static_cast<unsigned>(end)); }
  Schedule& schedule() { return group_[static_cast<std::size_t>(rank_)]; }

  Operand& OperandOf(const Step& step, int i) {
    const int index = step.first_operand + i;
    return schedule().operands[static_cast<std::size_t>(index)];
  }

  bool IsImplied(int rank, const Step& step) const {
    const auto& steps = group_[static_cast<std::size_t>(rank)].steps;
    const Report::StepOf wait{rank, static_cast<int>(&step - steps.data())};
    return std::find(implied_.begin(), implied_.end(), wait) != implied_.end();
  }
  bool IsNeeded(const Step& step) const { return IsWait(step) && !IsImplied(rank_, step); }

  /// Whether another rank has a wait for what `step` signals that no other wait implies; `by`: that
  /// one, or any.
  bool IsHeard(const Step& step, int by = kAllPeers) const {
    if (!IsSignal(step)) return false;
    for (const Schedule& other : group_) {
      if (other.rank == rank_ || (step.peer != kAllPeers && step.peer != other.rank) ||
          (by != kAllPeers && by != other.rank))
        continue;
      for (const Step& wait : other.steps)
        if (IsWait(wait) && wait.mark == step.mark &&
            (wait.peer == kAllPeers || wait.peer == rank_) && !IsImplied(other.rank, wait))
          return true;
    }
    return false;
  }
  /// Whether its place in the program can matter: it has to do with other ranks.
  bool HasPlace(const Step& step) const {
    if (IsSignal(step)) return IsHeard(step);
    if (IsWait(step)) return IsNeeded(step);
    const bool is_private = step.kind == StepKind::kCopy && step.dst.buffer != Buffer::kStage &&
                            step.src.buffer != Buffer::kStage;
    return !is_private;
  }

  /// Index of a step for which `filter` holds, -1 where there is none.
  int Draw(const Filter& filter) {
    std::vector<int> candidates;
    for (std::size_t i = 0; i < schedule().steps.size(); ++i)
      if (filter(schedule().steps[i])) candidates.push_back(static_cast<int>(i));
    if (candidates.empty()) return -1;
    return candidates[static_cast<std::size_t>(Below(static_cast<int>(candidates.size())))];
  }
  std::string TextOf(int step) {
    const std::string text = ToText(schedule());
    std::size_t begin = 0;
    for (int line = 0; line <= step; ++line) begin = text.find('\n', begin) + 1;
    return "rank " + std::to_string(rank_) + " step " + std::to_string(step) +
           text.substr(begin, text.find('\n', begin) - begin);
  }

  std::optional<std::string> Drop(const Filter& filter) {
    const int at = Draw(filter);
    if (at < 0) return std::nullopt;
    std::string text = TextOf(at);
    schedule().steps.erase(schedule().steps.begin() + at);
    PackOperands();
    return text;
  }

  std::optional<std::string> Duplicate(const Filter& filter) {
    const int at = Draw(filter);
    if (at < 0) return std::nullopt;
    const Step step = schedule().steps[static_cast<std::size_t>(at)];
    schedule().steps.insert(schedule().steps.begin() + at, step);
    PackOperands();
    return TextOf(at);
  }

  std::optional<std::string> Reorder() {
    std::vector<Step>& steps = schedule().steps;
    std::vector<int> candidates;
    for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
      const Step& a = steps[i];
      const Step& b = steps[i + 1];
      if (a.lag == b.lag && HasPlace(a) && HasPlace(b) &&
          ((IsWait(a) && MovesData(b)) || (MovesData(a) && IsSignal(b))))
        candidates.push_back(static_cast<int>(i));
    }
    if (candidates.empty()) return std::nullopt;
    const int at = candidates[static_cast<std::size_t>(Below(static_cast<int>(candidates.size())))];
    std::string text = TextOf(at) + " and " + TextOf(at + 1);
    std::swap(steps[static_cast<std::size_t>(at)], steps[static_cast<std::size_t>(at) + 1]);
    return text;
  }

  std::optional<std::string> Change(const Filter& filter,
                                    const std::function<void(Step&)>& change) {
    const int at = Draw(filter);
    if (at < 0) return std::nullopt;
    std::string text = TextOf(at);
    change(schedule().steps[static_cast<std::size_t>(at)]);
    if (const std::string changed = TextOf(at); changed != text) return text + " -> " + changed;
    return std::nullopt;
  }

  /// A rank other than `rank`.
  int Other(int rank) {
    const int ranks = static_cast<int>(group_.size());
    return (rank + 1 + Below(ranks - 1)) % ranks;
  }

  std::optional<std::string> Retarget() {
    const Filter has_peer = [&](const Step& step) {
      return IsHeard(step) || IsNeeded(step) || step.kind == StepKind::kGet ||
             step.kind == StepKind::kPut;
    };
    return Change(has_peer, [&](Step& step) {
      switch (step.kind) {
        case StepKind::kGet:
          step.src.owner = Other(step.src.owner);
          break;
        case StepKind::kPut:
          step.peer = step.dst.owner = Other(step.dst.owner);
          break;
        case StepKind::kSignal: {
          // To a rank that does not listen, if the signal was for all.
          const int peer = Other(step.peer < 0 ? rank_ : step.peer);
          if (step.peer >= 0 || !IsHeard(step, peer)) step.peer = peer;
          break;
        }
        default:
          // Of two ranks, all peers are one.
          if (step.peer >= 0 || group_.size() > 2)
            step.peer = Other(step.peer < 0 ? rank_ : step.peer);
      }
    });
  }

  std::optional<std::string> Resize() {
    const int by = Below(2) == 0 ? 1 : -1;
    return Change(MovesData, [&](Step& step) {
      const auto resize = [&](Slice& slice) {
        slice.count = std::max(1, slice.count + by);
        if (slice.count == 1) slice.stride = 1;
      };
      resize(step.dst);
      resize(step.extent);
      if (!IsReduce(step)) resize(step.src);
      for (int i = 0; i < step.operand_count; ++i) resize(OperandOf(step, i).slice);
    });
  }

  std::optional<std::string> MoveSlice() {
    const int by = Below(2) == 0 ? 1 : -1;
    const bool dst = Below(2) == 0;
    return Change(MovesData, [&](Step& step) {
      Slice* slice = dst ? &step.dst : &step.src;
      if (!dst && IsReduce(step)) slice = &OperandOf(step, Below(step.operand_count)).slice;
      // What gives the length goes with it, lest it be rejected for that alone.
      const bool gives_length = step.extent == *slice;
      slice->block = std::max(0, slice->block + by);
      if (gives_length) step.extent = *slice;
    });
  }

  std::optional<std::string> ChangeOrigin() {
    const auto reads_stage = [&](const Slice& slice) {
      return slice.buffer == Buffer::kStage && slice.owner != rank_ && slice.count == 1;
    };
    const auto slices_of = [&](Step& step) {
      std::vector<Slice*> slices;
      if (step.kind == StepKind::kGet && reads_stage(step.src)) slices.push_back(&step.src);
      for (int i = 0; i < step.operand_count; ++i)
        if (reads_stage(OperandOf(step, i).slice)) slices.push_back(&OperandOf(step, i).slice);
      return slices;
    };
    return Change([&](const Step& step) { return !slices_of(const_cast<Step&>(step)).empty(); },
                  [&](Step& step) {
                    const std::vector<Slice*> slices = slices_of(step);
                    Slice& slice =
                        *slices[static_cast<std::size_t>(Below(static_cast<int>(slices.size())))];
                    slice.origin = slice.origin >= 0 && Below(2) == 0
                                       ? -1
                                       : std::max(0, slice.origin + (Below(2) == 0 ? 1 : -1));
                  });
  }

  std::optional<std::string> ChangeOperands(MutationKind kind) {
    const int least = kind == MutationKind::kSwapOperands ? 2 : 1;
    const int at =
        Draw([&](const Step& step) { return IsReduce(step) && step.operand_count >= least; });
    if (at < 0) return std::nullopt;
    std::string text = TextOf(at);
    Step& step = schedule().steps[static_cast<std::size_t>(at)];
    const auto begin = schedule().operands.begin() + step.first_operand;
    std::vector<Operand> operands(begin, begin + step.operand_count);
    const auto one = static_cast<std::size_t>(Below(step.operand_count));
    switch (kind) {
      case MutationKind::kSwapOperands:
        std::swap(operands[one], operands[(one + 1) % operands.size()]);
        break;
      case MutationKind::kDropOperand:
        operands.erase(operands.begin() + static_cast<std::ptrdiff_t>(one));
        break;
      case MutationKind::kRepeatOperand:
        operands.push_back(operands[one]);
        break;
      default:
        operands[one].contributor = Below(static_cast<int>(group_.size()) + 1) - 1;
    }
    step.first_operand = static_cast<int>(schedule().operands.size());
    step.operand_count = static_cast<int>(operands.size());
    schedule().operands.insert(schedule().operands.end(), operands.begin(), operands.end());
    PackOperands();
    if (const std::string changed = TextOf(at); changed != text) return text + " -> " + changed;
    return std::nullopt;
  }

  /// Operands in the order of their steps, each of one step.
  void PackOperands() {
    std::vector<Operand> packed;
    for (Step& step : schedule().steps) {
      if (!IsReduce(step)) continue;
      const auto begin = schedule().operands.begin() + step.first_operand;
      step.first_operand = static_cast<int>(packed.size());
      packed.insert(packed.end(), begin, begin + step.operand_count);
    }
    schedule().operands = std::move(packed);
  }

  std::vector<Schedule>& group_;
  const std::vector<Report::StepOf>& implied_;
  std::mt19937& random_;
  const int rank_;
};

}  // namespace

const char* NameOf(MutationKind kind) {
  constexpr const char* kNames[kMutationKinds] = {
      "drop a move",     "drop a reduction",  "drop a signal",
      "drop a wait",     "repeat a move",     "repeat a reduction",
      "reorder",         "retarget",          "resize",
      "move a slice",    "shift an offset",   "shift a guard",
      "shift a lag",     "shift a mark",      "swap operands",
      "drop an operand", "repeat an operand", "change a contributor",
      "partial or not",  "staging or not",    "another origin"};
  return kNames[static_cast<int>(kind)];
}

std::optional<std::string> Mutate(MutationKind kind, std::vector<Schedule>& group,
                                  const std::vector<Report::StepOf>& implied,
                                  std::mt19937& random) {
  return Mutator(group, implied, random).Apply(kind);
}

}  // namespace tidegate::testing
