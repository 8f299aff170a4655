// Inputs that lie in the group's own memory, so that peers read them where they lie.
//
// Each rank says at its arrival where its inputs are. Slices that would read what it stages of them
// (Slice::origin) then read them instead; its own staging steps are left out, and their signals,
// which say that inputs are there, stand from the start. A resident rank comes to its end only when
// all ranks are at theirs: afterwards its caller may write to its inputs. Which rank is resident
// makes no difference to anybody's chunks and order of operands, hence none to any bit of a result.
//
// Of outputs in the same memory: the own block of an all-gather in place and that of a
// reduce-scatter into its input are read by no peer while they are written, for an all-gather does
// not write it and only this rank reads its own block of a reduce-scatter; of all-reduce and
// reduce, in which all blocks are in place, the verifier proves the like (Machine::TakeOrigin).
// Other overlaps are copied beforehand (CollectiveRequest::copy_inputs), so that their rank is not
// resident.

#include <algorithm>
#include <functional>
#include <string>

#include "collectives/executor/execution.h"

namespace tidegate {

bool Execution::StagesInput() const {
  return std::any_of(call_.schedule->steps.begin(), call_.schedule->steps.end(),
                     [](const Step& step) { return step.staging && step.kind == StepKind::kCopy; });
}

/// Where in this rank's region its inputs begin: kNotResident unless they all lie there, one behind
/// the other, and peers would read them there.
std::uint64_t Execution::InputsAt() const {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (const Block& block : call_.inputs) {
    if (block.bytes == 0) continue;
    if (begin == nullptr) begin = end = block.data;
    if (block.data != end) return kNotResident;
    end += block.bytes;
  }
  const std::byte* const region = transport_.RegionOf(rank_);
  const std::less<const std::byte*> before;
  if (begin == nullptr || before(begin, region) || before(region + transport_.region_bytes(), end))
    return kNotResident;
  const auto offset = static_cast<std::uint64_t>(begin - region);
  return offset % call_.element_bytes == 0 && StagesInput() ? offset : kNotResident;
}

/// Right before the arrival: signals all that a resident rank has to say of its inputs, and forgets
/// those of the peers of the operation before.
void Execution::OfferInputs() {
  std::fill(inputs_of_.begin(), inputs_of_.end(), nullptr);
  peer_resident_ = false;
  // Where each block of a peer's inputs begins, which this rank knows by its own blocks.
  const bool has_inputs = Reduces(call_.schedule->collective);
  input_starts_.assign(1, 0);
  for (const Block& block : has_inputs ? call_.inputs : call_.outputs)
    input_starts_.push_back(input_starts_.back() + block.bytes);
  if (!resident_) return;
  for (const Step& step : call_.schedule->steps)
    if (step.staging && step.kind == StepKind::kSignal)
      transport_.Signal(lane_, step.mark, WordFor(chunks_ - 1));
}

/// How many bytes of the inputs of `peer` this rank may have to do with; `mine`: where the first of
/// its own begins, which other slices count from.
Result<std::uint64_t> Execution::ExtentOfInputs(int peer, std::uint64_t* mine) const {
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
      const std::uint64_t most = transport_.region_bytes();
      for (int rank = 0; rank < rank_; ++rank) {
        const std::uint64_t bytes = transport_.SplitOf(lane_, peer, index_, rank);
        if (bytes > most - *mine)
          return Status(StatusCode::kMismatch, "sends more than its shared memory can hold");
        *mine += bytes;
      }
      return *mine + call_.outputs[owner].bytes;
    }
    default:
      return input_starts_.back();
  }
}

/// Takes down where `peer`, which made this very call, has its inputs. It is the peer's word:
/// nothing outside of its region is ever read because of it.
Status Execution::NoteInputs(int peer, const Fingerprint& theirs) {
  if (theirs.inputs_at == kNotResident) return Status();
  const std::uint64_t most = transport_.region_bytes();
  std::uint64_t mine = 0;
  const Result<std::uint64_t> extent = ExtentOfInputs(peer, &mine);
  if (!extent.ok() || theirs.inputs_at % call_.element_bytes != 0 || theirs.inputs_at > most ||
      extent.value() > most - theirs.inputs_at)
    return Status(StatusCode::kMismatch,
                  transport_.DescribePeer(peer) + " says that its inputs of " +
                      Describe(call_.fingerprint) + " begin at byte " +
                      std::to_string(theirs.inputs_at) + " of the " + std::to_string(most) +
                      " that its shared tensors may have, which cannot be" +
                      (extent.ok() ? "" : ": it " + extent.status().message()) +
                      "; its memory was overwritten, or it runs another build");
  inputs_of_[static_cast<std::size_t>(peer)] = transport_.RegionOf(peer) + theirs.inputs_at + mine;
  peer_resident_ = true;
  return Status();
}

/// Where the input lies that `slice` stands for, null where it is read as it says.
std::byte* Execution::InputOf(const Slice& slice) const {
  if (slice.origin < 0) return nullptr;
  std::byte* const inputs = inputs_of_[static_cast<std::size_t>(slice.owner)];
  if (inputs == nullptr) return nullptr;
  switch (call_.schedule->collective) {
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
      return inputs;  // The one block for this rank (ExtentOfInputs).
    default:
      return inputs + input_starts_[static_cast<std::size_t>(slice.origin)];
  }
}

/// All steps are run. Tells peers that their inputs have been read, and, if its own are read where
/// they lie, waits for the same from all of them.
bool Execution::PeersAreDone() {
  if (!finishing_) {
    finishing_ = true;
    wait_cursor_ = 0;
    if (peer_resident_) {
      transport_.Signal(lane_, kDoneMark, WordFor(0));
      published_ = true;
    }
  }
  if (!resident_) return true;
  for (; wait_cursor_ < transport_.ranks(); ++wait_cursor_) {
    if (wait_cursor_ == rank_) continue;
    if (!transport_.HasReached(lane_, wait_cursor_, kDoneMark, WordFor(0))) return false;
    ++progress_;
  }
  return true;
}

}  // namespace tidegate
