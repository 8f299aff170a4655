#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "collectives/schedule/schedule.h"

namespace tidegate {

/// Which slots of the ranks' stages the operations of a lane take, and which of the own stage's may
/// be written before all ranks are known to be at the operation, since nobody reads them any more.
///
/// Chunks take the slots in turn, and the first of an operation goes on where the one before ended:
/// a slot comes round late, when its lines have left the cache of the core that wrote them, and the
/// last two chunks of an operation are read while the first two of the next are staged. Operations
/// of one short chunk, which would use the beginning of each slot alone, have it at another place
/// of the slot each time the slots have come round (docs/adr/0012-slots-come-round-late.md).
///
/// All ranks come to the same slots and places: of what is told here only `in_order` may differ,
/// and `chunks` where they are not agreed. Used by one thread.
class StageSlots {
 public:
  /// What an operation does with the stages.
  struct Use {
    std::int64_t chunks = 0;
    /// All ranks have as many chunks; else the next operation cannot go on after the last of them.
    bool agreed = true;
    /// This rank stages all chunks, and each when the chunk kChunksInFlight before it has been read
    /// by all who read it: of one that is done, only the last so many may still be read. Else all.
    bool in_order = false;
    std::size_t places = 1;  ///< That a slot has for the chunk: a power of two.
    std::size_t place_bytes = 0;
  };

  explicit StageSlots(std::size_t slot_bytes) : slot_bytes_(slot_bytes) {}

  /// Goes on to the next operation. REQUIRES: of the last but one, all ranks have done all.
  void Next(const Use& use);
  /// The next operation is refused: nothing is known of who is still at which.
  void Skip();

  /// Where a chunk lies in a stage, from the beginning of the stage on.
  std::size_t OffsetOf(std::int64_t chunk) const { return SlotOf(chunk) * slot_bytes_ + place_; }
  std::size_t SlotOf(std::int64_t chunk) const {
    return static_cast<std::size_t>(first_ + static_cast<std::uint64_t>(chunk)) & (slots_ - 1);
  }
  /// How many slots the operation takes in turn.
  std::int64_t slots() const { return static_cast<std::int64_t>(slots_); }
  /// The chunks from here on can be staged once all ranks are at this operation.
  std::int64_t first_awaited() const { return first_awaited_; }
  /// Whether short chunks have places by now.
  bool has_places() const { return operation_ >= kFirstWithPlaces; }

 private:
  /// Until then a lane keeps to as many slots as chunks are in flight, and to the beginning of each
  /// of them: groups are many, and most of them idle, so that what the others gain costs memory.
  static constexpr std::uint64_t kFirstWithAllSlots = 8;
  static constexpr std::uint64_t kFirstWithPlaces = 64;
  /// After an operation whose chunks ranks do not agree upon.
  static constexpr std::uint64_t kBeyondUnknown = kStageSlots / 2 + 1;
  // Numbers of slots are powers of two, so that chunks that share one of kStageSlots slots share
  // one of the two in a schedule's model, and whatever is in order there is in order here.
  static_assert(std::has_single_bit(unsigned{kChunksInFlight}));
  static_assert(std::has_single_bit(unsigned{kStageSlots}));
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

  void GoOn() {
    ++operation_;
    first_ += chunks_;
    slots_ = operation_ < kFirstWithAllSlots ? kChunksInFlight : kStageSlots;
    place_ = 0;
    first_awaited_ = kNone;
  }

  const std::size_t slot_bytes_;
  std::uint64_t operation_ = 0;
  std::uint64_t first_ = 0;   ///< Of the operation's chunks, counted over all operations.
  std::uint64_t chunks_ = 0;  ///< By which the next operation goes on.
  std::size_t slots_ = kChunksInFlight;
  std::size_t place_ = 0;
  std::int64_t first_awaited_ = kNone;
  /// By slot: the last operation that leaves something in it which peers may still read.
  std::array<std::uint64_t, kStageSlots> last_use_{};
};

// A good part of what a short call takes beyond its bytes.

inline void StageSlots::Next(const Use& use) {
  GoOn();
  if (use.places > 1) place_ = (first_ / kStageSlots & (use.places - 1)) * use.place_bytes;
  chunks_ = use.agreed ? static_cast<std::uint64_t>(use.chunks) : kBeyondUnknown;
  const std::int64_t taken = std::min(use.chunks, slots());
  for (std::int64_t chunk = 0; chunk < taken; ++chunk) {
    // A peer that has arrived at this operation no longer reads what the one before left. What
    // older ones left has been read: finishing the one before took every peer's arrival at it.
    if (last_use_[SlotOf(chunk)] + 1 < operation_) continue;
    // The first operation has nothing before it.
    if (operation_ > 1) first_awaited_ = chunk;
    break;
  }
  const std::int64_t left = use.in_order ? std::min<std::int64_t>(taken, kChunksInFlight) : taken;
  for (std::int64_t back = 1; back <= left; ++back)
    last_use_[SlotOf(use.chunks - back)] = operation_;
}

inline void StageSlots::Skip() {
  GoOn();
  chunks_ = kBeyondUnknown;
  last_use_.fill(operation_);
}

}  // namespace tidegate
