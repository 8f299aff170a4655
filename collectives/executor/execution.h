#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/executor/disagreement.h"
#include "collectives/executor/pace.h"
#include "collectives/executor/request.h"
#include "collectives/executor/stage_slots.h"
#include "collectives/kernels/reduce.h"
#include "collectives/schedule/schedule.h"
#include "collectives/transport/transport.h"
#include "common/status.h"

namespace tidegate {

/// A schedule bound to the caller's memory: what one rank is about to run.
struct Invocation {
  const Schedule* schedule = nullptr;
  std::span<const Block> inputs;   ///< The schedule's input blocks.
  std::span<const Block> outputs;  ///< The schedule's output blocks.
  Fingerprint fingerprint;
  /// Calls of one Execution under the same number, other than 0, differ in where their blocks lie,
  /// in what ranks compare of them, in `streaming` and in their pace alone: what follows from the
  /// rest is worked out once.
  std::uint64_t shape = 0;
  ReduceKernel kernel = nullptr;  ///< Reducing collectives only.
  /// For steps whose result is not the end of it: kernel, but for AVG, whose division is the end.
  ReduceKernel partial_kernel = nullptr;
  std::size_t element_bytes = 1;
  /// all_to_all: bytes this rank sends to each rank, then those it expects from each.
  std::span<const std::uint64_t> splits;
  std::size_t chunk_bytes = 0;       ///< The longest chunk wanted; all ranks must agree.
  bool wide_slots = false;           ///< Use the whole stage, else half, but for places; all agree.
  bool streaming = false;            ///< Outputs bypass the cache.
  bool single_copy = false;          ///< Peers may read the inputs in this process's memory.
  bool crowded_single_copy = false;  ///< The same where the transport is crowded.
  InputMemory input_memory = InputMemory::kAny;  ///< As in CollectiveRequest.
  Pace* pace = nullptr;                          ///< Asked before each `get`; null: none is held.
};

/// Runs the operations of one lane of one rank, one after the other, over any Transport. Executions
/// are resumable: Advance never blocks but returns where it would have to wait, so that one thread
/// can serve many lanes. Nothing is allocated per chunk or, once warm, per operation. One thread at
/// a time.
///
/// Checks before the first byte of an output is written that every rank arrived with the same call.
class Execution {
 public:
  Execution(Transport& transport, int lane);

  /// Whether the next operation may be begun or refused: false only while a peer has not yet come
  /// to an operation that this rank refused, whose arrival record the next but one would overwrite.
  bool MayArrive();

  /// Begins the lane's next operation. REQUIRES: MayArrive(). What `invocation` points to must live
  /// until it is done.
  Status Start(const Invocation& invocation);

  enum class Outcome { kDone, kBlocked };
  /// Continues until done or until a peer must make progress first, at most `max_steps` steps.
  /// After an error the lane is unusable, and culprit() says who caused it.
  Result<Outcome> Advance(int max_steps = 1 << 30);

  /// After an error of Advance: the rank that caused it; -1 where no single rank did.
  int culprit() const { return culprit_; }

  /// Takes an operation's place in the order without taking part: peers that made the call are told
  /// that this rank refused it. REQUIRES: MayArrive().
  void Refuse(const Fingerprint& fingerprint);

  /// While blocked: until when the pace of the operation holds it; kNotHeld where it waits for
  /// peers.
  TimePoint held_until() const { return held_until_; }

  /// While blocked: the peers being waited for.
  void AwaitedPeers(std::vector<int>* peers) const;
  /// Tells peers what this rank waits for, for LastAwaited of theirs: to be called when the wait is
  /// long. A few stores.
  void PublishWait() const;
  /// While blocked: where the waiting ends. Of the peers being waited for and those that they wait
  /// for in turn, as far as they have published it, the ones that wait for nobody, by rank. Empty
  /// when there is none: all wait for each other.
  void LastAwaited(std::vector<int>* peers) const;
  /// While blocked: a peer, not only the next in order, that made another call under the number of
  /// this one, in whatever lane, or a call of another number in the place of this one. False when
  /// there is none.
  bool FindDisagreement(Disagreement* found) const;

  /// Grows with every step and every arrival seen: unchanged over an Advance means no progress.
  std::uint64_t progress() const { return progress_; }

  /// Bytes read from the stages of peers by all operations so far.
  std::uint64_t bytes_from_peers() const { return bytes_from_peers_; }
  /// Of these, bytes read from inputs of peers where they lie in their region.
  std::uint64_t resident_bytes() const { return resident_bytes_; }
  /// Of these, bytes read from inputs of peers where they lie in the memory of their processes.
  std::uint64_t single_copy_bytes() const { return single_copy_bytes_; }
  /// Bytes put into the stages of peers by all operations so far.
  std::uint64_t bytes_to_peers() const { return bytes_to_peers_; }

 private:
  /// Bits of a progress word that count chunks; the operation's index is above them.
  static constexpr int kChunkBits = 24;

  /// Where a peer's inputs, or one of them, can be read: in its region, so that `at` is an address
  /// here, in its process, or, as all that a slice says, in its stage.
  struct PeerInput {
    InputsIn in = InputsIn::kStage;
    std::uint64_t at = 0;
  };

  bool CheckArrivals(Status* mismatch);
  bool IsSameCall(int peer, const Fingerprint& theirs, Status* mismatch);
  Status CompareSplits();
  Status CompareSplit(int from, int to) const;
  Status DifferentCalls(int peer, const Fingerprint& theirs, const Fingerprint& ours) const;
  bool CallInOtherLane(int rank, std::uint64_t sequence, Fingerprint* call) const;
  void RunAhead();
  Result<Outcome> Continue(int max_steps);
  bool NextStep();
  void StepDone();
  bool RunStep(const Step& step, std::int64_t chunk);
  void WakeIfPublished();
  bool WaitSatisfied(const Step& step, std::int64_t chunk);
  bool HasReached(int peer, Mark mark, std::int64_t chunk);
  bool IsHeld(const Step& step, std::int64_t chunk);
  bool Move(const Step& step, std::int64_t chunk);
  bool Reduce(const Step& step, std::int64_t chunk);
  std::size_t LengthOf(const Slice& extent, int i, std::int64_t chunk) const;
  std::byte* Address(const Slice& slice, int i, std::int64_t chunk) const;
  const Block& BlockOf(const Slice& slice, int i) const {
    const auto block = static_cast<std::size_t>(slice.at(i));
    return slice.buffer == Buffer::kInput ? call_.inputs[block] : call_.outputs[block];
  }
  std::uint64_t WordFor(std::int64_t chunk) const {
    return (index_ << kChunkBits) + static_cast<std::uint64_t>(chunk) + 1;
  }
  PendingWait Pending() const;
  void PeersAwaitedBy(int rank, const PendingWait& wait, std::vector<int>* peers) const;
  bool MaySingleCopy() const;
  PeerInput PlaceOfInputs() const;
  bool InputsAreReadable() const;
  void OfferInputs();
  Status NoteInputs(int peer, const Fingerprint& theirs);
  Result<std::uint64_t> ExtentOfInputs(int peer, std::uint64_t most, std::uint64_t* mine) const;
  void NoteInputStarts();
  /// Where the input lies that `slice` stands for.
  PeerInput InputOf(const Slice& slice) const {
    return slice.origin < 0 || !peer_offers_ ? PeerInput{} : OfferedInput(slice);
  }
  PeerInput OfferedInput(const Slice& slice) const;
  bool Fetch(const Slice& slice, PeerInput input, std::int64_t chunk, std::byte* to,
             std::size_t bytes);
  void CannotFetch(int owner, const Status& read);
  bool PeersAreDone();
  bool CopiesNothing(const Step& step, std::int64_t chunk) const;
  bool NeedsArrivals(const Step& step, std::int64_t chunk) const;
  bool AwaitsPeers() const;
  Status CheckEven() const;
  Status Measure();
  std::size_t PlacesInSlot() const;
  std::size_t SubSlotWithPlaces() const;
  void UsePlaces();
  bool StagesInOrder() const;
  void PutInOrder();
  Status ReserveStage();
  Status ReserveSlot(std::size_t slot);
  /// What would fill a stage that nobody reads.
  bool IsLeftOut(const Step& step) const { return offers_inputs_ && step.staging; }
  /// Not where the chunk is beyond what the step is for.
  bool Exists(std::size_t step, std::int64_t chunk) const {
    if (chunk < 0) return false;
    const auto last = static_cast<std::size_t>(chunk + call_.schedule->steps[step].guard_offset);
    return last * chunk_bytes_ < extents_[step];
  }
  std::int64_t ChunkOf(const Step& step) const;

  Transport& transport_;
  const int lane_;
  const int rank_;
  const int ranks_;
  /// Slots lie at fixed places, whatever part of them an operation uses: reuse is tracked by slot.
  const std::size_t slot_stride_;
  std::vector<std::byte*> stages_;  ///< By rank.

  // Of the lane.
  std::uint64_t index_ = 0;
  bool refused_ = false;  ///< Operation index_ was refused and not every peer is known to be there.
  StageSlots slots_;
  /// Of a slot: bytes usable in each of its sub-slots, which lie that far apart.
  struct Committed {
    std::size_t bytes = 0;
    std::size_t stride = 0;
  };
  /// By sub-slot count, places and width: what the last operation that took the slot found or made
  /// usable.
  std::vector<std::array<Committed, kStageSlots>> committed_;
  std::uint64_t bytes_from_peers_ = 0;
  std::uint64_t resident_bytes_ = 0;
  std::uint64_t single_copy_bytes_ = 0;
  std::uint64_t bytes_to_peers_ = 0;
  std::uint64_t progress_ = 0;

  // Of the shape of the current operation: see Measure.
  std::uint64_t shape_ = 0;        ///< 0: has no number, or could not be measured.
  std::size_t longest_chunk_ = 0;  ///< As wanted.
  std::size_t chunk_bytes_ = 0;
  std::int64_t chunks_ = 0;
  std::int64_t iterations_ = 0;
  std::size_t longest_ = 0;
  std::vector<std::size_t> extents_;  ///< By step: bytes of the longest block of its extent.
  std::vector<const Step*> order_;    ///< Of one chunk: the steps that do something, in turn.
  bool stages_input_ = false;
  StageSlots::Use use_;
  std::size_t places_ = 1;           ///< That a slot has for its chunk, once there are any.
  std::size_t sub_slot_stride_ = 0;  ///< From one sub-slot to the next.
  unsigned reserved_ = 0;            ///< By bits: slots that are usable as far as it needs them.

  // Of the current operation.
  Invocation call_;
  const Step* step_ = nullptr;  ///< To be run now; null: none is left, or none was looked for.
  std::int64_t chunk_ = 0;      ///< Of step_.
  std::int64_t iteration_ = 0;
  std::size_t next_step_ = 0;
  std::size_t next_in_order_ = 0;
  int arrival_cursor_ = 0;  ///< Ranks below it have arrived and match.
  int wait_cursor_ = 0;     ///< Of a wait for all: ranks below it are there.
  bool running_ = false;
  bool published_ = false;      ///< Something that peers may sleep for since the last Wake.
  bool offers_inputs_ = false;  ///< Peers read this rank's inputs where they lie.
  bool peer_offers_ = false;    ///< This rank reads some peer's.
  bool finishing_ = false;      ///< All steps are run; peers may still read the inputs.
  Status fetched_;              ///< Why a peer's memory could not be read.
  TimePoint held_until_ = kNotHeld;
  int culprit_ = -1;
  int lost_ = -1;  ///< A peer whose memory cannot be read because its process ends.
  std::vector<PeerInput> inputs_of_;       ///< By rank: where a peer's inputs begin.
  std::vector<std::size_t> input_starts_;  ///< Of each block of a peer's inputs, and their end.
  std::vector<double> factors_;            ///< By rank, as the calls say.
  std::vector<std::uint16_t> ahead_;       ///< By rank: Fingerprint::ahead.
  std::vector<double> terms_;              ///< By operand of the step that runs.
  std::vector<const std::byte*> sources_;
};

}  // namespace tidegate
