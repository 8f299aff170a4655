#include "collectives/executor/execution.h"

#include <algorithm>
#include <cstring>

#include "collectives/kernels/copy.h"
#include "common/check.h"

namespace tidegate {
namespace {

/// Of a call with no longer blocks, what goes into the own stage first is there before the arrival
/// is announced, so that peers find it all at once: the cost of one hand-over instead of two.
constexpr std::size_t kRidingBytes = 64 << 10;
/// All-gathers that go from tensor to tensor at once need no chunks, which are only more system
/// calls; these are as long as slots allow. A rank that has to stage its input all the same uses
/// the same.
constexpr std::size_t kSingleCopyChunkBytes = std::size_t{512} << 10;
/// Copying or reducing fewer bytes takes less time than a fence and a look at who sleeps.
constexpr std::size_t kBytesWorthAWake = 16 << 10;

constexpr unsigned kAllSlots = (1U << kStageSlots) - 1;

}  // namespace

// Asked for every chunk of every step.

/// Below 0 where this iteration is none of the step's.
inline std::int64_t Execution::ChunkOf(const Step& step) const {
  const std::int64_t since = iteration_ - step.lag;
  const int period = call_.schedule->period;
  if (period == 1 || since < 0) return since;
  return since % period == 0 ? since / period : -1;
}

/// 0 where block i of `extent` ends before the chunk.
inline std::size_t Execution::LengthOf(const Slice& extent, int i, std::int64_t chunk) const {
  const std::size_t offset = static_cast<std::size_t>(chunk) * chunk_bytes_;
  const std::size_t bytes = BlockOf(extent, i).bytes;
  return bytes <= offset ? 0 : std::min(chunk_bytes_, bytes - offset);
}

inline std::byte* Execution::Address(const Slice& slice, int i, std::int64_t chunk) const {
  if (slice.buffer != Buffer::kStage)
    return BlockOf(slice, i).data + static_cast<std::size_t>(chunk) * chunk_bytes_;
  if (const PeerInput input = InputOf(slice); input.in == InputsIn::kRegion)
    // NOLINTNEXTLINE(performance-no-int-to-ptr): what NoteInputs has made of a peer's word
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(input.at)) +
           static_cast<std::size_t>(chunk) * chunk_bytes_;
  return stages_[static_cast<std::size_t>(slice.owner)] + slots_.OffsetOf(chunk) +
         static_cast<std::size_t>(slice.at(i)) * sub_slot_stride_;
}

Execution::Execution(Transport& transport, int lane)
    : transport_(transport),
      lane_(lane),
      rank_(transport.rank()),
      ranks_(transport.ranks()),
      slot_stride_(transport.stage_bytes() / kStageSlots),
      slots_(slot_stride_),
      inputs_of_(static_cast<std::size_t>(ranks_)),
      factors_(static_cast<std::size_t>(ranks_), 1.0),
      ahead_(static_cast<std::size_t>(ranks_)) {
  for (int rank = 0; rank < ranks_; ++rank) stages_.push_back(transport.StageOf(lane, rank));
}

Status Execution::Start(const Invocation& invocation) {
  TIDEGATE_CHECK(!running_ && !refused_);
  call_ = invocation;
  // All ranks must come to the same. Whether they are crowded they agree on once all are there, as
  // at the end of any operation; how long an all_to_all is, which is what splits tell, they need
  // not.
  if (index_ > 0 && call_.splits.empty() && MaySingleCopy())
    call_.chunk_bytes = std::max(call_.chunk_bytes, kSingleCopyChunkBytes);
  if (call_.shape == 0 || call_.shape != shape_ || call_.chunk_bytes != longest_chunk_)
    TIDEGATE_RETURN_IF_ERROR(Measure());
  if (use_.places != places_ && slots_.has_places()) UsePlaces();
  slots_.Next(use_);
  if (reserved_ != kAllSlots) TIDEGATE_RETURN_IF_ERROR(ReserveStage());

  ++index_;
  step_ = nullptr;
  chunk_ = 0;
  iteration_ = 0;
  next_step_ = 0;
  next_in_order_ = 0;
  arrival_cursor_ = 0;
  wait_cursor_ = 0;
  running_ = true;
  finishing_ = false;
  lost_ = -1;
  held_until_ = kNotHeld;
  factors_[static_cast<std::size_t>(rank_)] = call_.fingerprint.factor;
  OfferInputs();
  if (slots_.first_awaited() > 0 && longest_ <= kRidingBytes) RunAhead();
  transport_.Arrive(lane_, index_, call_.fingerprint, call_.splits);
  published_ = true;
  return Status();
}

/// Looks for the step to run now; false: all have been run.
inline bool Execution::NextStep() {
  if (chunks_ == 1) {
    for (; next_in_order_ < order_.size(); ++next_in_order_) {
      step_ = order_[next_in_order_];
      if (!IsLeftOut(*step_)) return true;
    }
    step_ = nullptr;
    return false;
  }
  const std::vector<Step>& steps = call_.schedule->steps;
  for (; iteration_ < iterations_; ++iteration_, next_step_ = 0) {
    for (; next_step_ < steps.size(); ++next_step_) {
      step_ = &steps[next_step_];
      chunk_ = ChunkOf(*step_);
      if (!IsLeftOut(*step_) && Exists(next_step_, chunk_)) return true;
    }
  }
  step_ = nullptr;
  return false;
}

inline void Execution::StepDone() {
  ++next_step_;
  ++next_in_order_;
  ++progress_;
}

/// Runs the first iteration as far as it needs no peer.
void Execution::RunAhead() {
  while (NextStep()) {
    const Step& step = *step_;
    const bool is_later = chunks_ == 1 ? step.lag > 0 : iteration_ > 0;
    if (is_later || NeedsArrivals(step, chunk_) || !RunStep(step, chunk_)) return;
    if (step.kind == StepKind::kSignal && chunk_ == 0 && step.mark < kAheadMarks)
      call_.fingerprint.ahead |= static_cast<std::uint16_t>(1U << step.mark);
    StepDone();
  }
}

/// For the operation that starts.
Status Execution::ReserveStage() {
  // Only what this operation takes: many groups have few.
  for (std::int64_t chunk = 0; chunk < std::min(chunks_, slots_.slots()); ++chunk) {
    const std::size_t slot = slots_.SlotOf(chunk);
    if ((reserved_ >> slot & 1U) == 0) TIDEGATE_RETURN_IF_ERROR(ReserveSlot(slot));
    reserved_ |= 1U << slot;
  }
  return Status();
}

Status Execution::ReserveSlot(std::size_t slot) {
  const auto sub_slots = static_cast<std::size_t>(call_.schedule->sub_slots);
  const bool has_places = use_.places > 1;
  const std::size_t key = sub_slots * 4 + (has_places ? 2 : 0) + (call_.wide_slots ? 1 : 0);
  if (committed_.size() <= key) committed_.resize(key + 1, {});
  const std::size_t used =
      has_places ? use_.places * use_.place_bytes : std::min(longest_, chunk_bytes_);
  Committed& last = committed_[key][slot];
  if (used <= last.bytes && (sub_slots == 1 || last.stride == sub_slot_stride_)) return Status();
  for (std::size_t sub_slot = 0; sub_slot < sub_slots; ++sub_slot)
    TIDEGATE_RETURN_IF_ERROR(
        transport_.CommitStage(lane_, slot * slot_stride_ + sub_slot * sub_slot_stride_, used));
  last = {used, sub_slot_stride_};
  return Status();
}

Result<Execution::Outcome> Execution::Advance(int max_steps) {
  TIDEGATE_CHECK(running_);
  Result<Outcome> outcome = Continue(max_steps);
  WakeIfPublished();
  return outcome;
}

void Execution::WakeIfPublished() {
  if (!published_) return;
  published_ = false;
  transport_.Wake();
}

Result<Execution::Outcome> Execution::Continue(int max_steps) {
  Status mismatch;
  const auto blocked = [&]() -> Result<Outcome> {
    if (!mismatch.ok()) return mismatch;
    return Outcome::kBlocked;
  };
  if (slots_.first_awaited() == 0 && !CheckArrivals(&mismatch)) return blocked();
  while (NextStep()) {
    if (NeedsArrivals(*step_, chunk_) && !CheckArrivals(&mismatch)) return blocked();
    if (max_steps-- == 0) return Outcome::kBlocked;
    if (!RunStep(*step_, chunk_)) {
      if (!fetched_.ok()) return fetched_;
      return Outcome::kBlocked;
    }
    StepDone();
  }
  if (!CheckArrivals(&mismatch)) return blocked();
  if (!PeersAreDone()) return Outcome::kBlocked;
  running_ = false;
  return Outcome::kDone;
}

/// Whether a copy between the caller's blocks has nothing to do.
bool Execution::CopiesNothing(const Step& step, std::int64_t chunk) const {
  return step.dst.count == 1 && Address(step.dst, 0, chunk) == Address(step.src, 0, chunk);
}

/// Filling the own stage harms nobody, so it may run ahead of the peers; all else may not.
bool Execution::NeedsArrivals(const Step& step, std::int64_t chunk) const {
  if (arrival_cursor_ == ranks_) return false;
  switch (step.kind) {
    case StepKind::kCopy:
      if (step.dst.buffer == Buffer::kStage) return chunk >= slots_.first_awaited();
      // Then the second chunk may be staged. With one there is nothing to come.
      return chunks_ == 1 || !CopiesNothing(step, chunk);
    case StepKind::kSignal:
      return false;
    case StepKind::kWait:
      return chunk + step.wait_offset >= 0;
    case StepKind::kGet:
    case StepKind::kPut:
    case StepKind::kReduce:
      return true;
  }
  return true;
}

/// False: a peer must make progress first, or its memory cannot be read (fetched_).
bool Execution::RunStep(const Step& step, std::int64_t chunk) {
  switch (step.kind) {
    case StepKind::kWait:
      return WaitSatisfied(step, chunk);
    case StepKind::kSignal:
      transport_.Signal(lane_, step.mark, WordFor(chunk));
      published_ = true;
      return true;
    case StepKind::kGet:
      if (call_.pace != nullptr && IsHeld(step, chunk)) return false;
      return Move(step, chunk);
    case StepKind::kCopy:
    case StepKind::kPut:
      return Move(step, chunk);
    case StepKind::kReduce:
      return Reduce(step, chunk);
  }
  return true;
}

bool Execution::WaitSatisfied(const Step& step, std::int64_t chunk) {
  const std::int64_t target = chunk + step.wait_offset;
  if (target < 0) return true;
  if (step.peer != kAllPeers) return HasReached(step.peer, step.mark, target);
  for (; wait_cursor_ < ranks_; ++wait_cursor_)
    if (wait_cursor_ != rank_ && !HasReached(wait_cursor_, step.mark, target)) return false;
  wait_cursor_ = 0;
  return true;
}

/// REQUIRES: the peer has arrived.
bool Execution::HasReached(int peer, Mark mark, std::int64_t chunk) {
  const unsigned ahead = ahead_[static_cast<std::size_t>(peer)];
  if (chunk == 0 && mark < kAheadMarks && (ahead >> mark & 1U) != 0) return true;
  return transport_.HasReached(lane_, peer, mark, WordFor(chunk));
}

/// Whether what the step would read must wait. Asked for all of it, since a step runs as a whole.
/// REQUIRES: there is a pace.
bool Execution::IsHeld(const Step& step, std::int64_t chunk) {
  held_until_ = kNotHeld;
  // What cannot be read any more is not asked for again and again.
  if (lost_ >= 0 || transport_.failing()) return false;
  std::size_t bytes = 0;
  for (int i = 0; i < step.dst.count; ++i) bytes += LengthOf(step.extent, i, chunk);
  held_until_ = call_.pace->Admit(bytes);
  return held_until_ != kNotHeld;
}

bool Execution::Move(const Step& step, std::int64_t chunk) {
  const PeerInput input = InputOf(step.src);
  for (int i = 0; i < step.dst.count; ++i) {
    const std::size_t bytes = LengthOf(step.extent, i, chunk);
    if (bytes == 0) continue;
    if (bytes >= kBytesWorthAWake) WakeIfPublished();
    std::byte* const dst = Address(step.dst, i, chunk);
    if (input.in == InputsIn::kProcess) {
      if (!Fetch(step.src, input, chunk, dst, bytes)) return false;
      continue;
    }
    const std::byte* const src = Address(step.src, i, chunk);
    if (step.kind == StepKind::kGet) bytes_from_peers_ += bytes;
    if (input.in == InputsIn::kRegion) resident_bytes_ += bytes;
    if (step.kind == StepKind::kPut) bytes_to_peers_ += bytes;
    if (dst == src) continue;  // In place.
    if (call_.streaming && step.dst.buffer == Buffer::kOutput) {
      StreamingCopy(dst, src, bytes);
    } else {
      std::memcpy(dst, src, bytes);
    }
  }
  return true;
}

bool Execution::Reduce(const Step& step, std::int64_t chunk) {
  const auto count = static_cast<std::size_t>(step.operand_count);
  const Operand* const operands = call_.schedule->operands.data() + step.first_operand;
  sources_.resize(count);
  terms_.resize(count);
  for (std::size_t term = 0; term < count; ++term) {
    const int contributor = operands[term].contributor;
    terms_[term] = contributor < 0 ? 1.0 : factors_[static_cast<std::size_t>(contributor)];
  }
  // all_reduce reads its output again, to spread it.
  const bool streaming = call_.streaming && step.dst.buffer == Buffer::kOutput &&
                         call_.schedule->collective != Collective::kAllReduce;
  for (int i = 0; i < step.dst.count; ++i) {
    const std::size_t bytes = LengthOf(step.extent, i, chunk);
    if (bytes == 0) continue;
    if (bytes >= kBytesWorthAWake) WakeIfPublished();
    for (std::size_t term = 0; term < count; ++term) {
      const Slice& slice = operands[term].slice;
      const PeerInput input = InputOf(slice);
      sources_[term] = Address(slice, i, chunk);
      if (slice.buffer == Buffer::kStage && slice.owner != rank_) bytes_from_peers_ += bytes;
      if (input.in == InputsIn::kRegion) resident_bytes_ += bytes;
    }
    if (step.dst.buffer == Buffer::kStage && step.dst.owner != rank_) bytes_to_peers_ += bytes;
    std::byte* const dst = Address(step.dst, i, chunk);
    // In place the lines of the output have just been read, and are in the cache anyway.
    const bool in_place =
        streaming && std::find(sources_.begin(), sources_.end(), dst) != sources_.end();
    (step.partial ? call_.partial_kernel : call_.kernel)({.dst = dst,
                                                          .sources = sources_.data(),
                                                          .source_count = step.operand_count,
                                                          .elements = bytes / call_.element_bytes,
                                                          .factors = terms_.data(),
                                                          .divisor = ranks_,
                                                          .streaming = streaming && !in_place});
  }
  return true;
}

}  // namespace tidegate
