// Inputs that peers read where they lie: in the group's own memory (resident), or in that of their
// rank's process (single copy: Transport::ReadMemory).
//
// Each rank says at its arrival where its inputs are. Slices that would read what it stages of them
// (Slice::origin) then read them instead; its own staging steps are left out, and their signals,
// which say that inputs are there, stand from the start. Such a rank comes to its end only when all
// ranks are at theirs: afterwards its caller may write to its inputs. Which rank does this makes no
// difference to anybody's chunks and order of operands, hence none to any bit of a result.
//
// Of outputs in the same memory: the own block of an all-gather in place and that of a
// reduce-scatter into its input are read by no peer while they are written, for an all-gather does
// not write it and only this rank reads its own block of a reduce-scatter (gather and scatter at
// the root likewise); of all-reduce and reduce, in which all blocks are in place, the verifier
// proves the like (Machine::TakeOrigin). Other overlaps are copied beforehand
// (CollectiveRequest::copy_inputs).

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

#include "collectives/executor/execution.h"

namespace tidegate {

/// Where peers are to read this rank's inputs: in its stage unless all lie one behind the other
/// where they can be read, and would be.
Execution::PeerInput Execution::PlaceOfInputs() const {
  if (!stages_input_) return {};
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (const Block& block : call_.inputs) {
    if (block.bytes == 0) continue;
    if (begin == nullptr) begin = end = block.data;
    if (block.data != end) return {};
    end += block.bytes;
  }
  if (begin == nullptr) return {};
  const std::byte* const region = transport_.RegionOf(rank_);
  const std::less<const std::byte*> before;
  if (!before(begin, region) && !before(region + transport_.region_bytes(), end)) {
    const auto offset = static_cast<std::uint64_t>(begin - region);
    if (offset % call_.element_bytes == 0) return {InputsIn::kRegion, offset};
  }
  if (MaySingleCopy() && transport_.PeersReadMemory() && InputsAreReadable())
    return {InputsIn::kProcess, reinterpret_cast<std::uintptr_t>(begin)};
  return {};
}

/// Not in reductions, which load their operands from a stage faster than the system copies them.
bool Execution::MaySingleCopy() const {
  if (Reduces(call_.schedule->collective)) return false;
  // Looks at the transport only where that makes a difference.
  return call_.single_copy == call_.crowded_single_copy ? call_.single_copy
         : transport_.crowded()                         ? call_.crowded_single_copy
                                                        : call_.single_copy;
}

/// Inputs that lie one behind the other may be of several allocations, each of another kind.
bool Execution::InputsAreReadable() const {
  const auto readable = [&](const Block& block) {
    return block.bytes == 0 || transport_.IsReadable(block.data, block.bytes);
  };
  switch (call_.input_memory) {
    case InputMemory::kMalloc:
      return true;
    case InputMemory::kOneAllocation:
      return readable(*std::find_if(call_.inputs.begin(), call_.inputs.end(),
                                    [](const Block& block) { return block.bytes > 0; }));
    case InputMemory::kAny:
      break;
  }
  return std::all_of(call_.inputs.begin(), call_.inputs.end(), readable);
}

/// Right before the arrival: signals all that a rank has to say of inputs that are read where they
/// lie, and forgets those of the peers of the operation before.
void Execution::OfferInputs() {
  const PeerInput place = PlaceOfInputs();
  call_.fingerprint.inputs_in = place.in;
  call_.fingerprint.inputs_at = place.at;
  offers_inputs_ = place.in != InputsIn::kStage;
  if (peer_offers_) std::fill(inputs_of_.begin(), inputs_of_.end(), PeerInput{});
  peer_offers_ = false;
  if (!offers_inputs_) return;
  for (const Step& step : call_.schedule->steps)
    if (step.staging && step.kind == StepKind::kSignal)
      transport_.Signal(lane_, step.mark, WordFor(chunks_ - 1));
}

/// Where each block of a peer's inputs begins, which this rank knows by its own blocks.
void Execution::NoteInputStarts() {
  input_starts_.assign(1, 0);
  for (const Block& block : Reduces(call_.schedule->collective) ? call_.inputs : call_.outputs)
    input_starts_.push_back(input_starts_.back() + block.bytes);
}

/// How many bytes of the inputs of `peer`, which can have no more than `most`, this rank may have
/// to do with; `mine`: where the first of its own begins, which other slices count from.
Result<std::uint64_t> Execution::ExtentOfInputs(int peer, std::uint64_t most,
                                                std::uint64_t* mine) const {
  const auto owner = static_cast<std::size_t>(peer);
  const auto outputs = call_.outputs.size();
  *mine = 0;
  switch (call_.schedule->collective) {
    case Collective::kAllGather:
      return call_.outputs[owner].bytes;
    case Collective::kGather:
      return outputs == 0 ? 0 : call_.outputs[owner].bytes;
    case Collective::kScatter:
      *mine = static_cast<std::uint64_t>(rank_) * call_.outputs.front().bytes;
      return *mine + call_.outputs.front().bytes;
    case Collective::kAllToAll: {
      // Written by the peer: no sum of them is to be trusted.
      const auto too_many = [] {
        return Status(StatusCode::kMismatch, "sends more than can lie there");
      };
      for (int rank = 0; rank < rank_; ++rank) {
        const std::uint64_t bytes = transport_.SplitOf(lane_, peer, index_, rank);
        if (bytes > most - *mine) return too_many();
        *mine += bytes;
      }
      if (call_.outputs[owner].bytes > most - *mine) return too_many();
      return *mine + call_.outputs[owner].bytes;
    }
    default:
      return input_starts_.back();
  }
}

/// Takes down where `peer`, which made this very call, has its inputs outside of its stage. It is
/// the peer's word: nothing outside of its region or of its process is ever read because of it.
Status Execution::NoteInputs(int peer, const Fingerprint& theirs) {
  if (!peer_offers_) NoteInputStarts();
  peer_offers_ = true;
  const bool in_process = theirs.inputs_in == InputsIn::kProcess;
  const std::uint64_t most =
      in_process ? std::numeric_limits<std::uint64_t>::max() : transport_.region_bytes();
  std::uint64_t mine = 0;
  const Result<std::uint64_t> extent = ExtentOfInputs(peer, most, &mine);
  const bool is_possible =
      in_process
          ? transport_.ReadsMemoryOf(peer) && !Reduces(theirs.collective)
          : theirs.inputs_in == InputsIn::kRegion && theirs.inputs_at % call_.element_bytes == 0;
  if (!extent.ok() || !is_possible || theirs.inputs_at > most ||
      extent.value() > most - theirs.inputs_at)
    return Status(
        StatusCode::kMismatch,
        transport_.DescribePeer(peer) + " says that its inputs of " + Describe(call_.fingerprint) +
            " begin at byte " + std::to_string(theirs.inputs_at) + " of the " +
            std::to_string(most) +
            (in_process ? " that a process may have" : " that its shared tensors may have") +
            ", which cannot be" + (extent.ok() ? "" : ": it " + extent.status().message()) +
            "; its memory was overwritten, or it runs another build");
  const std::uint64_t base =
      in_process ? 0 : reinterpret_cast<std::uintptr_t>(transport_.RegionOf(peer));
  inputs_of_[static_cast<std::size_t>(peer)] = {theirs.inputs_in, base + theirs.inputs_at + mine};
  return Status();
}

/// InputOf where some peer offers its inputs and the slice stands for one.
Execution::PeerInput Execution::OfferedInput(const Slice& slice) const {
  PeerInput input = inputs_of_[static_cast<std::size_t>(slice.owner)];
  switch (call_.schedule->collective) {
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
      break;  // The one block for this rank (ExtentOfInputs).
    default:
      if (input.in != InputsIn::kStage)
        input.at += input_starts_[static_cast<std::size_t>(slice.origin)];
  }
  return input;
}

/// Copies what `slice` stands for from the memory of its owner's process. False: it ends (lost_),
/// which whoever watches it says, or (fetched_) that memory cannot be read.
bool Execution::Fetch(const Slice& slice, PeerInput input, std::int64_t chunk, std::byte* to,
                      std::size_t bytes) {
  const std::uint64_t at = input.at + static_cast<std::uint64_t>(chunk) * chunk_bytes_;
  const Status read = transport_.ReadMemory(slice.owner, at, to, bytes);
  if (read.ok()) {
    bytes_from_peers_ += bytes;
    single_copy_bytes_ += bytes;
    return true;
  }
  // A rank that has given up its operation may have given up the tensor, too.
  if (read.code() == StatusCode::kPeerLost) {
    lost_ = slice.owner;
  } else if (!transport_.failing()) {
    CannotFetch(slice.owner, read);
  }
  return false;
}

/// Says who is to blame that the memory of `owner`, whose process lives, was not read, and why that
/// may be.
void Execution::CannotFetch(int owner, const Status& read) {
  std::string text = "rank " + std::to_string(rank_) + " cannot copy the tensor of " +
                     transport_.DescribePeer(owner) + " in " + Describe(call_.fingerprint) + ": " +
                     read.message() + "; ";
  StatusCode code = StatusCode::kInternal;
  switch (read.code()) {
    case StatusCode::kInvalidArgument:
      culprit_ = owner;
      text += "rank " + std::to_string(owner) +
              " unmapped that tensor before the call was done, is being killed for want of memory "
              "(see dmesg), or has it from a device driver: keep tensors until their work is done, "
              "or set TIDEGATE_SINGLE_COPY_BYTES=0";
      break;
    case StatusCode::kInternal:
      culprit_ = rank_;
      text += "keep the output of a call, which must be writable, until its work is done";
      break;
    default:
      code = read.code();
      text += "set TIDEGATE_SINGLE_COPY_BYTES=0";
  }
  fetched_ = Status(code, text);
}

/// All steps are run. Tells peers that their inputs have been read, and, if its own are read where
/// they lie, waits for the same from all of them.
bool Execution::PeersAreDone() {
  if (!finishing_) {
    finishing_ = true;
    wait_cursor_ = 0;
    if (peer_offers_) {
      transport_.Signal(lane_, kDoneMark, WordFor(0));
      published_ = true;
    }
  }
  // A rank whose call has failed may have written to its inputs before they were read here.
  if (peer_offers_ && transport_.failing()) return false;
  if (!offers_inputs_) return true;
  for (; wait_cursor_ < ranks_; ++wait_cursor_) {
    if (wait_cursor_ == rank_) continue;
    if (!transport_.HasReached(lane_, wait_cursor_, kDoneMark, WordFor(0))) return false;
    ++progress_;
  }
  return true;
}

}  // namespace tidegate
