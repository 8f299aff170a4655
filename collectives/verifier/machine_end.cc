// What must be true of outputs, and what to say where ranks wait for ever.

#include <algorithm>
#include <optional>

#include "collectives/verifier/machine.h"
#include "collectives/verifier/where.h"

namespace tidegate::verifier {

/// Empty, or why `value` is not what `block` of the output of `rank` must be.
std::string Machine::ProblemOfOutput(int rank, int block, const Value& value) const {
  if (const auto source = blocks_.SourceOf(rank, block)) {
    if (value.is_plain() && value.rank == source->rank && value.block == source->block) return "";
    return "must be rank " + std::to_string(source->rank) + "'s input[" +
           std::to_string(source->block) + "]";
  }
  const int reduced = blocks_.ReducedBlockOf(rank, block);
  if (!value.is_plain() && value.block == reduced && !values_.IsPartial(value)) return "";
  return "must be the sum of all inputs[" + std::to_string(reduced) + "]" +
         (value.is_plain() ? ", with factors applied"
                           : (values_.IsPartial(value) ? ", divided where AVG divides" : ""));
}

/// What a slice says that it reads in place of a slot must be what lies there, and must be free to
/// be read until the reader is done, even where the owner writes its output to the same memory.
bool Machine::TakeOrigin(const Turn& turn, const Slice& slice, int i, const StageCell& cell,
                         const Value& value) {
  if (slice.origin < 0) {
    if (!cell.staging) return true;
    return Fail(turn, "reads " + TextOf(slice, i) + ", which is not there if rank " +
                          std::to_string(slice.owner) + " is resident, and names no origin");
  }
  if (!cell.staging)
    return Fail(turn, "names an origin of " + TextOf(slice, i) +
                          ", which its owner stages even if it is resident");
  if (!value.is_plain() || value.rank != slice.owner || value.block != slice.origin)
    return Fail(turn, "reads " + TextOf(slice, i) + ", which holds " + values_.Describe(value));
  const int by = orbit_.ShiftOf(slice.owner);
  const int owner = orbit_.RepresentativeOf(slice.owner);
  const int block =
      blocks_.Moves(Buffer::kInput) ? orbit_.Back(slice.origin, by) : int{slice.origin};
  const std::optional<int> replaced = blocks_.InPlaceOf(owner, block);
  if (!replaced) return true;
  OutputCell& output = OutputOf(owner, *replaced, turn.chunk);
  if (!output.value.is_nothing())
    return FailRace(
        turn, "reads " + TextOf(slice, i) + " where it lies, which the output may have replaced");
  output.reads.push_back({orbit_.Back(current_, by), now_});
  return true;
}

bool Machine::WriteOutput(const Turn& turn, const Slice& slice, int i, const Value& value) {
  const int block = slice.at(i);
  if (blocks_.IsGiven(current_))
    return Fail(turn, "writes " + TextOf(slice, i) + ", which is the root's input");
  const std::int64_t length =
      blocks_.LengthOf(blocks_.BytesOf(current_, Buffer::kOutput, block), turn.chunk);
  if (value.bytes != length)
    return Fail(turn, "writes " + std::to_string(value.bytes) + " bytes to " + TextOf(slice, i) +
                          ", which has " + std::to_string(length));
  OutputCell& cell = OutputOf(current_, block, turn.chunk);
  if (!cell.value.is_nothing())
    return Fail(turn, "writes " + TextOf(slice, i) + " again, after step " +
                          TextOf(schedules_[At(current_)], At(cell.step)));
  const std::string problem = ProblemOfOutput(current_, block, value);
  if (!problem.empty())
    return Fail(turn, "writes " + values_.Describe(value) + " to " + TextOf(slice, i) + ", which " +
                          problem);
  for (const Access& access : cell.reads)
    if (!IsOver(access, current_, cell.reads))
      return FailRace(turn, "writes " + TextOf(slice, i) + " while " +
                                NameOfAccess(access, current_) +
                                " may be reading the input where both are the same memory");
  cell = {value, turn.step, {}};
  return true;
}

Status Machine::CheckEnd() {
  for (std::size_t rank = 0; rank < schedules_.size(); ++rank) {
    current_ = static_cast<int>(rank);
    for (int block = 0; block < blocks_.CountOf(current_, Buffer::kOutput); ++block) {
      if (blocks_.IsGiven(current_)) continue;
      const std::int64_t chunks =
          blocks_.ChunksOf(blocks_.BytesOf(current_, Buffer::kOutput, block));
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
        if (OutputOf(current_, block, chunk).value.is_nothing())
          return Status(StatusCode::kInvalidArgument,
                        Program(schedules_[rank]) + ": ends without having written chunk " +
                            std::to_string(chunk) + " of output[" + std::to_string(block) + "]");
    }
  }
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const StageCell& cell = stages_[i];
    if (cell.value.is_nothing() || !cell.reads.empty()) continue;
    const int owner = static_cast<int>(i / At(sub_slots_) / kChunksInFlight);
    const int writer = orbit_.RepresentativeOf(cell.write.rank);
    return Reject(schedules_[At(writer)], At(cell.step),
                  "nobody reads what it leaves in sub-slot " + std::to_string(i % At(sub_slots_)) +
                      " of the stage of rank " +
                      std::to_string(orbit_.Back(owner, orbit_.ShiftOf(cell.write.rank))),
                  cell.value.chunk);
  }
  return Status();
}

/// The first rank that the waiting representative `rank` lacks.
int Machine::MissingPeerOf(int rank) const {
  const Turn& turn = turns_[At(rank)][next_[At(rank)]];
  const Step& step = schedules_[At(rank)].steps[At(turn.step)];
  if (step.peer != kAllPeers) return step.peer;
  for (int peer = 0; peer < blocks_.ranks(); ++peer) {
    if (peer == rank) continue;
    const auto& marks = marks_[At(orbit_.RepresentativeOf(peer))];
    const int me = orbit_.Back(rank, orbit_.ShiftOf(peer));
    const auto told = [&](const Rise& rise) {
      return rise.chunk >= turn.chunk + step.wait_offset &&
             (rise.peer == kAllPeers || rise.peer == me);
    };
    if (At(step.mark) >= marks.size() ||
        std::none_of(marks[At(step.mark)].begin(), marks[At(step.mark)].end(), told))
      return peer;
  }
  return -1;
}

Status Machine::Stuck() const {
  std::size_t rank = 0;
  while (next_[rank] == turns_[rank].size()) ++rank;
  const std::size_t first = rank;
  std::string chain;
  std::vector<bool> visited(schedules_.size(), false);
  for (int hops = 0;; ++hops) {
    visited[rank] = true;
    const Turn& turn = turns_[rank][next_[rank]];
    const Schedule& schedule = schedules_[rank];
    const int peer = MissingPeerOf(static_cast<int>(rank));
    const auto there = At(orbit_.RepresentativeOf(peer));
    const int by = orbit_.ShiftOf(peer);
    if (hops > 0 && hops <= 8)
      chain += "; rank " + std::to_string(rank) + " waits at step " +
               TextOf(schedule, At(turn.step)) + ", chunk " + std::to_string(turn.chunk) +
               ", for rank " + std::to_string(peer);
    const Step& step = schedule.steps[At(turn.step)];
    const int me = orbit_.Back(static_cast<int>(rank), by);
    const auto& rest = turns_[there];
    const bool comes = std::any_of(
        rest.begin() + static_cast<std::ptrdiff_t>(next_[there]), rest.end(), [&](const Turn& one) {
          const Step& other = schedules_[there].steps[At(one.step)];
          return other.kind == StepKind::kSignal && other.mark == step.mark &&
                 (other.peer == kAllPeers || other.peer == me) &&
                 one.chunk >= turn.chunk + step.wait_offset;
        });
    std::string end;
    if (!comes)
      end = "; rank " + std::to_string(peer) + " never signals it";
    else if (visited[there])
      end = "; which closes the circle";
    if (end.empty()) {
      rank = there;
      continue;
    }
    const Turn& start = turns_[first][next_[first]];
    return Reject(schedules_[first], At(start.step),
                  "deadlock: waits for ever for rank " +
                      std::to_string(MissingPeerOf(static_cast<int>(first))) + chain + end,
                  start.chunk);
  }
}

void Machine::Fill(Report* report) const {
  for (std::size_t rank = 0; rank < schedules_.size(); ++rank) {
    for (const auto& [peer, bytes] : put_[rank])
      report->put.push_back({static_cast<int>(rank), peer, bytes});
    for (const auto& [peer, bytes] : read_[rank])
      report->read.push_back({peer, static_cast<int>(rank), bytes});
    report->steps += static_cast<std::int64_t>(turns_[rank].size());
    if (!turns_[rank].empty())
      report->iterations = std::max(report->iterations,
                                    IterationOf(static_cast<int>(rank), turns_[rank].back()) + 1);
    for (std::size_t i = 0; i < needed_[rank].size() && clocks_; ++i)
      if (schedules_[rank].steps[i].kind == StepKind::kWait && !needed_[rank][i])
        report->implied_waits.push_back({static_cast<int>(rank), static_cast<int>(i)});
    report->marks = std::max(report->marks, schedules_[rank].Marks());
  }
  std::sort(report->read.begin(), report->read.end(), [](const RankBytes& a, const RankBytes& b) {
    return a.from != b.from ? a.from < b.from : a.to < b.to;
  });
  const auto nodes = At(placement_.nodes());
  report->leaves.assign(nodes, 0);
  report->enters.assign(nodes, 0);
  for (const RankBytes& one : report->put) {
    for (int by = 0; by < blocks_.ranks(); by += orbit_.representatives()) {
      const int from = placement_.node_of(orbit_.Forward(one.from, by));
      const int to = placement_.node_of(orbit_.Forward(one.to, by));
      if (from == to) continue;
      report->leaves[At(from)] += one.bytes;
      report->enters[At(to)] += one.bytes;
    }
  }
  for (std::size_t i = 0; i < stages_.size(); ++i)
    if (!stages_[i].value.is_nothing())
      report->sub_slots_used =
          std::max(report->sub_slots_used, static_cast<int>(i % At(sub_slots_)) + 1);
  if (Reduces(blocks_.collective())) {
    report->in_rank_order = values_.in_rank_order();
    report->order = values_.order();
  }
}

}  // namespace tidegate::verifier
