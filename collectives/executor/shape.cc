// What of an Execution's calls follows from their shape: the schedule and the lengths of blocks.

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "collectives/executor/execution.h"

namespace tidegate {
namespace {

constexpr std::size_t kChunkAlignment = 64;
/// Shorter chunks gained nothing at other places, and what goes from or to a root lost: nobody
/// takes the lines of one who runs ahead.
constexpr std::size_t kLeastWithPlaces = 16 << 10;

}  // namespace

/// Works out what follows from the schedule and the lengths of blocks and chunks.
Status Execution::Measure() {
  const Schedule& schedule = *call_.schedule;
  shape_ = 0;  // Until all is known.
  if (schedule.Marks() > kMaxMarks)
    return Status(StatusCode::kUnsupported,
                  "algorithm " + schedule.name + " needs " + std::to_string(schedule.Marks()) +
                      " progress words at " + std::to_string(schedule.ranks) +
                      " ranks, there are " + std::to_string(kMaxMarks) +
                      "; choose another with TIDEGATE_ALGO");
  longest_ = 0;
  for (const Block& block : call_.inputs) longest_ = std::max(longest_, block.bytes);
  for (const Block& block : call_.outputs) longest_ = std::max(longest_, block.bytes);
  if (schedule.even) TIDEGATE_RETURN_IF_ERROR(CheckEven());

  const std::size_t slot_bytes = slot_stride_ / (call_.wide_slots ? 1 : 2);
  longest_chunk_ = call_.chunk_bytes;
  chunk_bytes_ =
      std::min(slot_bytes / static_cast<std::size_t>(schedule.sub_slots), longest_chunk_) /
      kChunkAlignment * kChunkAlignment;
  if (chunk_bytes_ == 0)
    return Status(StatusCode::kUnsupported, "algorithm " + schedule.name + " cuts a slot of " +
                                                std::to_string(slot_bytes) + " bytes into " +
                                                std::to_string(schedule.sub_slots) +
                                                " parts; raise TIDEGATE_STAGE_BYTES");
  chunks_ = static_cast<std::int64_t>((longest_ + chunk_bytes_ - 1) / chunk_bytes_);
  if (chunks_ >= (std::int64_t{1} << kChunkBits) - 1)
    return Status(StatusCode::kUnsupported, "a block of " + std::to_string(longest_) +
                                                " bytes needs " + std::to_string(chunks_) +
                                                " chunks of " + std::to_string(chunk_bytes_) +
                                                " bytes, too many; raise TIDEGATE_STAGE_BYTES");
  iterations_ = chunks_ == 0 ? 0 : (chunks_ - 1) * schedule.period + 1 + schedule.MaxLag();
  reserved_ = 0;
  stages_input_ = false;
  extents_.clear();
  for (const Step& step : schedule.steps) {
    std::size_t longest = step.extent.block < 0 ? longest_ : 0;
    for (int i = 0; step.extent.block >= 0 && i < step.extent.count; ++i)
      longest = std::max(longest, BlockOf(step.extent, i).bytes);
    extents_.push_back(longest);
    stages_input_ = stages_input_ || (step.staging && step.kind == StepKind::kCopy);
  }
  order_.clear();
  if (chunks_ == 1) PutInOrder();
  // Ranks of an all_to_all do not know each other's blocks.
  const bool agreed = call_.splits.empty();
  use_ = {.chunks = chunks_, .agreed = agreed, .in_order = StagesInOrder()};
  sub_slot_stride_ = chunk_bytes_;
  places_ = agreed ? PlacesInSlot() : 1;
  shape_ = call_.shape;
  return Status();
}

/// Whether the schedule fills the own stage alone, and every part of it that it fills with every
/// chunk, which it may do once the chunk kChunksInFlight before has been read. What others put into
/// it is read by its owner, or, by its mates, before the owner comes to its end.
bool Execution::StagesInOrder() const {
  const std::vector<Step>& steps = call_.schedule->steps;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind == StepKind::kPut) return false;
    const bool fills = steps[i].dst.buffer == Buffer::kStage &&
                       (steps[i].kind == StepKind::kCopy || steps[i].kind == StepKind::kReduce);
    if (fills && (steps[i].dst.owner != rank_ || !Exists(i, chunks_ - 1))) return false;
  }
  return true;
}

/// How many places a slot has for the one chunk of an operation, of the same length in all of its
/// sub-slots.
std::size_t Execution::PlacesInSlot() const {
  if (chunks_ != 1 || longest_ < kLeastWithPlaces || IsRooted(call_.schedule->collective)) return 1;
  return std::max(std::bit_floor(SubSlotWithPlaces() / std::bit_ceil(longest_)), std::size_t{1});
}

/// Bytes of a sub-slot that has places: all of the slot is for them.
std::size_t Execution::SubSlotWithPlaces() const {
  return slot_stride_ / static_cast<std::size_t>(call_.schedule->sub_slots) / kChunkAlignment *
         kChunkAlignment;
}

/// The lane has made enough operations that places are worth their pages.
void Execution::UsePlaces() {
  use_.places = places_;
  use_.place_bytes = std::bit_ceil(longest_);
  sub_slot_stride_ = SubSlotWithPlaces();
  reserved_ = 0;
}

/// With one chunk most iterations have nothing to do for most steps: each is run in the one
/// iteration that it lags by, and looked at in no other; nor is what waits for chunks before it.
void Execution::PutInOrder() {
  const std::vector<Step>& steps = call_.schedule->steps;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool is_in_vain = steps[i].kind == StepKind::kWait && steps[i].wait_offset < 0;
    if (Exists(i, 0) && !is_in_vain) order_.push_back(&steps[i]);
  }
  // All are of one array, in which they stand as they are run within an iteration.
  std::sort(order_.begin(), order_.end(), [](const Step* a, const Step* b) {
    return std::pair(a->lag, a) < std::pair(b->lag, b);
  });
}

Status Execution::CheckEven() const {
  for (const std::span<const Block> blocks : {call_.inputs, call_.outputs})
    for (const Block& block : blocks)
      if (block.bytes != longest_)
        return Status(StatusCode::kInvalidArgument,
                      "algorithm " + call_.schedule->name + " is for blocks of one size; one has " +
                          std::to_string(block.bytes) + " bytes, another " +
                          std::to_string(longest_));
  return Status();
}

}  // namespace tidegate
