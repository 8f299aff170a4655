#include "collectives/verifier/machine.h"

#include <algorithm>
#include <optional>

#include "collectives/verifier/where.h"

namespace tidegate::verifier {

Machine::Machine(const Blocks& blocks, const Placement& placement, Orbit orbit,
                 std::span<const Schedule> schedules)
    : blocks_(blocks),
      placement_(placement),
      orbit_(orbit),
      schedules_(schedules),
      values_(blocks, orbit),
      before_(orbit),
      staged_(schedules.size()),
      told_(schedules.size()),
      acquired_(schedules.size()),
      known_(schedules.size()) {
  constexpr int kFewRanks = 8;  // With more, clocks of all cost more than the rest.
  if (orbit_.is_trivial() && blocks_.ranks() <= kFewRanks) clocks_.emplace(blocks_.ranks());
  const std::size_t count = schedules_.size();
  turns_.resize(count);
  next_.assign(count, 0);
  marks_.resize(count);
  outputs_.resize(count);
  first_cell_.resize(count);
  sources_.resize(count);
  put_.resize(count);
  read_.resize(count);
  const auto name = [&](const Slice& slice) {
    if (slice.buffer == Buffer::kStage)
      sub_slots_ = std::max({sub_slots_, slice.block + 1, slice.at(slice.count - 1) + 1});
  };
  for (const Schedule& schedule : schedules_) {
    for (const Step& step : schedule.steps) {
      name(step.dst);
      name(step.src);
    }
    for (const Operand& operand : schedule.operands) name(operand.slice);
  }
  stages_.resize(count * kChunksInFlight * At(sub_slots_));
  for (std::size_t rank = 0; rank < count; ++rank) Plan(static_cast<int>(rank));
}

/// Lays out what `rank` will do and where its outputs are.
void Machine::Plan(int rank) {
  const Schedule& schedule = schedules_[At(rank)];
  const std::int64_t chunks = blocks_.ChunksOf(blocks_.LongestOf(rank));
  const std::int64_t iterations =
      chunks == 0 ? 0 : (chunks - 1) * schedule.period + 1 + schedule.MaxLag();
  std::vector<Turn>& turns = turns_[At(rank)];
  turns.reserve(schedule.steps.size() * At(chunks));
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    const std::int64_t longest = LongestIn(rank, step.extent);
    for (std::int64_t chunk = std::max(0, -int{step.guard_offset});
         (chunk + step.guard_offset) * blocks_.chunk_bytes() < longest; ++chunk) {
      const Turn turn{static_cast<int>(i), static_cast<int>(chunk)};
      if (IterationOf(rank, turn) >= iterations) break;
      turns.push_back(turn);
    }
  }
  std::sort(turns.begin(), turns.end(), [&](const Turn& a, const Turn& b) {
    return std::pair(IterationOf(rank, a), a.step) < std::pair(IterationOf(rank, b), b.step);
  });
  marks_[At(rank)].resize(At(schedule.Marks()));
  needed_.emplace_back(schedule.steps.size(), false);
  sources_[At(rank)].assign(schedule.operands.size(), -1);
  std::size_t cells = 0;
  for (int block = 0; block < blocks_.CountOf(rank, Buffer::kOutput); ++block) {
    first_cell_[At(rank)].push_back(cells);
    cells += At(blocks_.ChunksOf(blocks_.BytesOf(rank, Buffer::kOutput, block)));
  }
  outputs_[At(rank)].resize(cells);
}

std::int64_t Machine::LongestIn(int rank, const Slice& extent) const {
  if (extent == kLongestBlock) return blocks_.LongestOf(rank);
  std::int64_t longest = 0;
  for (int i = 0; i < extent.count; ++i)
    longest = std::max(longest, blocks_.BytesOf(rank, extent.buffer, extent.at(i)));
  return longest;
}

Status Machine::Run() {
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t rank = 0; rank < turns_.size(); ++rank) {
      current_ = static_cast<int>(rank);
      const std::size_t before = next_[rank];
      while (next_[rank] < turns_[rank].size() && Take(turns_[rank][next_[rank]])) ++next_[rank];
      if (!failure_.ok()) return failure_;
      moved = moved || next_[rank] != before;
    }
  }
  for (std::size_t rank = 0; rank < turns_.size(); ++rank)
    if (next_[rank] < turns_[rank].size()) return Stuck();
  return CheckEnd();
}

bool Machine::Fail(const Turn& turn, const std::string& what) {
  failure_ = Reject(schedules_[At(current_)], At(turn.step), what, turn.chunk);
  return false;
}

bool Machine::FailRace(const Turn& turn, const std::string& what) {
  return Fail(turn, "races: " + what);
}

/// False where it has to wait or is wrong.
bool Machine::Take(const Turn& turn) {
  const Step& step = schedules_[At(current_)].steps[At(turn.step)];
  if (step.kind == StepKind::kWait) return TakeWait(turn, step);
  EndWaits();
  now_ = before_.Tick(current_);
  if (clocks_) clocks_->SetOwn(current_, now_);
  switch (step.kind) {
    case StepKind::kSignal:
      return TakeSignal(turn, step);
    case StepKind::kReduce:
      return TakeReduce(turn, step);
    default:
      return TakeMove(turn, step);
  }
}

/// Null unless `peer` has told the current rank that it reached `chunk`. Else where it did so for
/// the first time, whomever it told: where a mark is one word in shared memory, all see it then,
/// and what it knew then is all that every execution can rely on.
const Machine::Rise* Machine::FindRise(int peer, const Step& step, std::int64_t chunk) const {
  const auto& marks = marks_[At(orbit_.RepresentativeOf(peer))];
  if (At(step.mark) >= marks.size()) return nullptr;
  const std::vector<Rise>& rises = marks[At(step.mark)];
  const int me = orbit_.Back(current_, orbit_.ShiftOf(peer));
  const auto first =
      std::lower_bound(rises.begin(), rises.end(), chunk,
                       [](const Rise& one, std::int64_t value) { return one.chunk < value; });
  auto rise = first;
  while (rise != rises.end() && rise->peer != kAllPeers && rise->peer != me) ++rise;
  return rise == rises.end() ? nullptr : &*first;
}

bool Machine::TakeWait(const Turn& turn, const Step& step) {
  const std::int64_t chunk = turn.chunk + step.wait_offset;
  if (chunk < 0) return true;
  if (step.peer != kAllPeers) {
    const Rise* const rise = FindRise(step.peer, step, chunk);
    if (rise == nullptr) return false;
    Acquire(turn, step, step.peer, *rise);
    return true;
  }
  for (int peer = 0; peer < blocks_.ranks(); ++peer)
    if (peer != current_ && FindRise(peer, step, chunk) == nullptr) return false;
  for (int peer = 0; peer < blocks_.ranks(); ++peer)
    if (peer != current_) Acquire(turn, step, peer, *FindRise(peer, step, chunk));
  return true;
}

void Machine::Acquire(const Turn& turn, const Step& step, int peer, const Rise& rise) {
  if (clocks_) {
    std::vector<Acquired>& acquired = acquired_[At(current_)];
    if (acquired.empty()) known_[At(current_)] = clocks_->TimesOf(current_);
    acquired.push_back({turn.step, peer, rise.saved});
  }
  if (!step.staging && !rise.staging) {
    before_.Acquire(current_, peer, rise.when);
    if (clocks_) clocks_->Acquire(current_, rise.saved);
  } else if (!step.staging || !rise.staging) {
    Clocks::Time& known = (step.staging ? staged_ : told_)[At(current_)][peer];
    known = std::max(known, rise.when);
  }
}

/// Waits that follow each other are a set: one is needed where the others, and what was known
/// before, leave its signal open.
void Machine::EndWaits() {
  std::vector<Acquired>& acquired = acquired_[At(current_)];
  for (const Acquired& wait : acquired) {
    const Clocks::Time signalled = clocks_->SavedTimeOf(wait.saved, wait.peer);
    bool is_known = known_[At(current_)][At(wait.peer)] >= signalled;
    for (const Acquired& other : acquired)
      is_known = is_known || (other.step != wait.step &&
                              clocks_->SavedTimeOf(other.saved, wait.peer) >= signalled);
    if (!is_known) needed_[At(current_)][At(wait.step)] = true;
  }
  acquired.clear();
}

bool Machine::TakeSignal(const Turn& turn, const Step& step) {
  std::vector<Rise>& rises = marks_[At(current_)][At(step.mark)];
  if (!rises.empty() && rises.back().chunk > turn.chunk)
    return Fail(turn, "signals chunk " + std::to_string(turn.chunk) + " after chunk " +
                          std::to_string(rises.back().chunk) +
                          " at the same mark: words only grow");
  rises.push_back(
      {turn.chunk, step.peer, clocks_ ? clocks_->Save(current_) : 0, now_, step.staging});
  return true;
}

std::int64_t Machine::LengthOf(const Step& step, int i, std::int64_t chunk) const {
  return blocks_.LengthOf(blocks_.BytesOf(current_, step.extent.buffer, step.extent.at(i)), chunk);
}

bool Machine::TakeMove(const Turn& turn, const Step& step) {
  for (int i = 0; i < step.dst.count; ++i) {
    const std::int64_t bytes = LengthOf(step, i, turn.chunk);
    if (bytes == 0) continue;
    Value value;
    if (!Read(turn, step.src, i, bytes, &value)) return false;
    if (step.kind == StepKind::kGet) read_[At(current_)][step.src.owner] += bytes;
    if (step.kind == StepKind::kPut) put_[At(current_)][step.dst.owner] += bytes;
    if (!Write(turn, step.dst, i, bytes, value)) return false;
  }
  return true;
}

bool Machine::TakeReduce(const Turn& turn, const Step& step) {
  const Schedule& schedule = schedules_[At(current_)];
  for (int i = 0; i < step.dst.count; ++i) {
    const std::int64_t bytes = LengthOf(step, i, turn.chunk);
    if (bytes == 0) continue;
    terms_.clear();
    for (int term = 0; term < step.operand_count; ++term) {
      const std::size_t index = At(step.first_operand + term);
      const Operand& operand = schedule.operands[index];
      Value value;
      if (!Read(turn, operand.slice, i, bytes, &value)) return false;
      const auto fail = [&](const std::string& what) {
        return Fail(turn, "operand " + std::to_string(term) + ", " + TextOf(operand.slice, i) +
                              ", which is " + values_.Describe(value) + ", " + what);
      };
      const int contributor = value.is_plain() ? value.rank : -1;
      if (!value.is_plain() && !values_.IsPartial(value))
        return fail("was divided already where AVG divides");
      if (operand.contributor != contributor)
        return fail("has contributor " + std::to_string(operand.contributor) + ", not " +
                    std::to_string(contributor));
      if (!terms_.empty() && value.block != terms_.front().block)
        return fail("is of another block than operand 0");
      if (!terms_.empty() && value.rank <= terms_.back().rank)
        return fail("follows one of rank " + std::to_string(terms_.back().rank) +
                    ": operands come in the order of ranks");
      sources_[At(current_)][index] = value.rank;
      if (operand.slice.buffer == Buffer::kStage && operand.slice.owner != current_)
        read_[At(current_)][operand.slice.owner] += bytes;
      terms_.push_back(value);
    }
    std::string problem;
    const Value sum = values_.Add(current_, step.partial, terms_, &problem);
    if (!problem.empty()) return Fail(turn, problem);
    if (step.dst.buffer == Buffer::kStage && step.dst.owner != current_)
      put_[At(current_)][step.dst.owner] += bytes;
    if (!Write(turn, step.dst, i, bytes, sum)) return false;
  }
  return true;
}

Machine::StageCell& Machine::CellOf(const Slice& slice, int i, std::int64_t chunk) {
  const std::int64_t owner = orbit_.RepresentativeOf(slice.owner);
  return stages_[At((owner * kChunksInFlight + chunk % kChunksInFlight) * sub_slots_ +
                    slice.at(i))];
}

Machine::OutputCell& Machine::OutputOf(int rank, int block, std::int64_t chunk) {
  return outputs_[At(rank)][first_cell_[At(rank)][At(block)] + At(chunk)];
}

/// Whether the current rank knows that an access to memory of `owner` is over. `others`: that were
/// made to it since, so that their ranks are likely to be the ones that it knows that from.
/// `staging`: to what the owner stages, so that it is not resident.
bool Machine::IsOver(const Access& access, int owner, const std::vector<Access>& others,
                     bool staging) const {
  const int by = orbit_.ShiftOf(owner);
  const int rank = orbit_.Forward(access.rank, by);
  if (rank == current_ || before_.KnowsDirectly(current_, rank, access.when)) return true;
  if (staging && (owner == current_ || owner == rank)) {
    const auto& direct = (owner == current_ ? staged_ : told_)[At(current_)];
    const auto known = direct.find(rank);
    if (known != direct.end() && known->second >= access.when) return true;
  }
  const auto knows_by = [&](int peer) {
    return before_.KnowsBy(current_, peer, rank, access.when);
  };
  return knows_by(owner) ||
         std::ranges::any_of(
             others,
             [&](const Access& other) { return knows_by(orbit_.Forward(other.rank, by)); }) ||
         before_.Knows(current_, rank, access.when);
}

std::string Machine::NameOfAccess(const Access& access, int owner) const {
  return "rank " + std::to_string(orbit_.Forward(access.rank, orbit_.ShiftOf(owner)));
}

bool Machine::Read(const Turn& turn, const Slice& slice, int i, std::int64_t bytes, Value* value) {
  const int block = slice.at(i);
  if (slice.buffer == Buffer::kStage) {
    StageCell& cell = CellOf(slice, i, turn.chunk);
    if (cell.value.is_nothing())
      return Fail(turn, "reads " + TextOf(slice, i) + " before it is written");
    if (!IsOver(cell.write, slice.owner, cell.reads, cell.staging))
      return FailRace(turn, "reads " + TextOf(slice, i) + " while " +
                                NameOfAccess(cell.write, slice.owner) + " may be writing it");
    *value = values_.Moved(cell.value, orbit_.ShiftOf(slice.owner));
    if (!TakeOrigin(turn, slice, i, cell, *value)) return false;
    const int me = orbit_.Back(current_, orbit_.ShiftOf(slice.owner));
    if (cell.reads.empty() || cell.reads.back().rank != me)
      cell.reads.push_back({me, now_});
    else
      cell.reads.back().when = now_;
  } else {
    const Buffer buffer = slice.buffer;
    const std::int64_t length =
        blocks_.LengthOf(blocks_.BytesOf(current_, buffer, block), turn.chunk);
    if (length == 0) return Fail(turn, "reads " + TextOf(slice, i) + ", which has no such chunk");
    const bool given = buffer == Buffer::kOutput && blocks_.IsGiven(current_);
    if (buffer == Buffer::kInput || given) {
      const std::optional<int> replaced =
          buffer == Buffer::kInput ? blocks_.InPlaceOf(current_, block) : std::nullopt;
      if (replaced && !OutputOf(current_, *replaced, turn.chunk).value.is_nothing())
        return Fail(turn, "reads " + TextOf(slice, i) +
                              ", which the output has replaced where both are the same memory");
      *value = {Value::kPlain, current_, block, turn.chunk, static_cast<int>(length)};
    } else {
      *value = OutputOf(current_, block, turn.chunk).value;
      if (value->is_nothing())
        return Fail(turn, "reads " + TextOf(slice, i) + " before it is written");
    }
  }
  if (value->chunk != turn.chunk)
    return Fail(turn, "reads " + TextOf(slice, i) + ", which holds " + values_.Describe(*value));
  if (value->bytes != bytes)
    return Fail(turn, "reads " + std::to_string(bytes) + " bytes of " + TextOf(slice, i) +
                          ", which holds " + std::to_string(value->bytes) + ": " +
                          values_.Describe(*value));
  return true;
}

bool Machine::Write(const Turn& turn, const Slice& slice, int i, std::int64_t bytes,
                    const Value& value) {
  if (slice.buffer == Buffer::kOutput) return WriteOutput(turn, slice, i, value);
  StageCell& cell = CellOf(slice, i, turn.chunk);
  const int by = orbit_.ShiftOf(slice.owner);
  const bool staging = schedules_[At(current_)].steps[At(turn.step)].staging;
  if (!cell.value.is_nothing()) {
    const auto held = [&] { return values_.Describe(values_.Moved(cell.value, by)); };
    if (cell.staging != staging)
      return Fail(turn, "writes " + TextOf(slice, i) +
                            (staging ? " unless resident" : ", resident or not") +
                            ", which is not so of what it holds: " + held());
    if (!IsOver(cell.write, slice.owner, cell.reads, staging))
      return FailRace(turn, "writes " + TextOf(slice, i) + " while " +
                                NameOfAccess(cell.write, slice.owner) + " may be writing it");
    if (cell.reads.empty())
      return Fail(turn, "overwrites " + TextOf(slice, i) + ", which holds " + held() +
                            " that nobody has read");
    for (const Access& access : cell.reads)
      if (!IsOver(access, slice.owner, cell.reads, staging))
        return FailRace(turn, "writes " + TextOf(slice, i) + " while " +
                                  NameOfAccess(access, slice.owner) + " may be reading " + held());
  }
  cell.value = values_.Moved(value, orbit_.Inverse(by));
  cell.value.bytes = static_cast<int>(bytes);
  cell.write = {orbit_.Back(current_, by), now_};
  cell.step = turn.step;
  cell.staging = staging;
  cell.reads.clear();
  return true;
}

}  // namespace tidegate::verifier
