// What an Execution tells its peers about its calls, and what it makes of what they tell.

#include <algorithm>
#include <string>
#include <utility>

#include "collectives/executor/execution.h"
#include "common/check.h"

namespace tidegate {

bool Execution::MayArrive() {
  if (!refused_) return true;
  for (int peer = 0; peer < transport_.ranks(); ++peer)
    if (peer != rank_ && !transport_.HasArrived(lane_, peer, index_)) return false;
  refused_ = false;
  ++progress_;
  return true;
}

void Execution::Refuse(const Fingerprint& fingerprint) {
  TIDEGATE_CHECK(!running_ && !refused_);
  ++index_;
  slots_.Skip();
  refused_ = true;
  call_.fingerprint = fingerprint;
  call_.fingerprint.refused = 1;
  transport_.Arrive(lane_, index_, call_.fingerprint, {});
  transport_.Wake();
}

bool Execution::CheckArrivals(Status* mismatch) {
  while (arrival_cursor_ < ranks_) {
    if (arrival_cursor_ != rank_) {
      if (!transport_.HasArrived(lane_, arrival_cursor_, index_)) return false;
      // Calls of different numbers never match; what to say about them takes a look at the other
      // lane, which FindDisagreement takes.
      const Fingerprint theirs = transport_.ArrivalOf(lane_, arrival_cursor_, index_);
      if (theirs.sequence != call_.fingerprint.sequence) return false;
      if (!IsSameCall(arrival_cursor_, theirs, mismatch)) return false;
    }
    ++arrival_cursor_;
    ++progress_;
    if (arrival_cursor_ == ranks_ && !call_.splits.empty()) {
      *mismatch = CompareSplits();
      if (!mismatch->ok()) return false;
    }
  }
  return true;
}

/// Every rank checks every pair, so that all of them fail and none completes.
Status Execution::CompareSplits() {
  const int ranks = transport_.ranks();
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) TIDEGATE_RETURN_IF_ERROR(CompareSplit(from, to));
  return Status();
}

Status Execution::CompareSplit(int from, int to) const {
  const std::uint64_t sent = transport_.SplitOf(lane_, from, index_, to);
  const std::uint64_t expected = transport_.SplitOf(lane_, to, index_, transport_.ranks() + from);
  if (sent == expected) return Status();
  return Status(StatusCode::kMismatch,
                "all_to_all splits differ: " + transport_.DescribePeer(from) + " sends " +
                    std::to_string(sent) + " bytes to " + transport_.DescribePeer(to) +
                    ", which expects " + std::to_string(expected) + ", in " +
                    Describe(call_.fingerprint));
}

/// Takes down what there is to know of a call that matches. False, with the reason, for any other.
bool Execution::IsSameCall(int peer, const Fingerprint& theirs, Status* mismatch) {
  if (theirs.refused != 0 || !Matches(call_.fingerprint, theirs)) {
    *mismatch = DifferentCalls(peer, theirs, call_.fingerprint);
    return false;
  }
  factors_[static_cast<std::size_t>(peer)] = theirs.factor;
  ahead_[static_cast<std::size_t>(peer)] = theirs.ahead;
  if (theirs.inputs_in == InputsIn::kStage) return true;
  *mismatch = NoteInputs(peer, theirs);
  return mismatch->ok();
}

Status Execution::DifferentCalls(int peer, const Fingerprint& theirs,
                                 const Fingerprint& ours) const {
  if (theirs.refused != 0)
    return Status(StatusCode::kMismatch,
                  transport_.DescribePeer(peer) + " refused its own call of " +
                      std::string(NameOf(theirs.collective)) + " seq " +
                      std::to_string(theirs.sequence) + " as wrong, while rank " +
                      std::to_string(rank_) + " called " + Describe(ours) +
                      "; see the error of rank " + std::to_string(peer));
  Fingerprint same_plan = theirs;
  same_plan.plan = ours.plan;
  if (Matches(same_plan, ours)) {
    const bool has_splits = !call_.splits.empty();
    if (has_splits) {
      // Sizes that differ lead to other algorithms, and are what to say.
      TIDEGATE_RETURN_IF_ERROR(CompareSplit(rank_, peer));
      TIDEGATE_RETURN_IF_ERROR(CompareSplit(peer, rank_));
    }
    return Status(StatusCode::kMismatch,
                  "rank " + std::to_string(rank_) + " runs " + Describe(ours) + " by algorithm " +
                      call_.schedule->name + ", " + transport_.DescribePeer(peer) +
                      " by another; " +
                      (has_splits ? "give splits on all ranks or on none, and " : "") +
                      "set TIDEGATE_ALGO equal on all ranks");
  }
  return Status(
      StatusCode::kMismatch,
      "ranks made different calls: " + transport_.DescribePeer(peer) + " called " +
          Describe(theirs) + ", rank " + std::to_string(rank_) + " called " + Describe(ours) +
          (theirs.collective == ours.collective && theirs.layout != ours.layout &&
                   theirs.elements == ours.elements
               ? "; the sizes of their parts differ, the strides of their tensors, or what "
                 "they are coalesced with"
               : ""));
}

bool Execution::FindDisagreement(Disagreement* found) const {
  if (!AwaitsPeers()) return false;
  const Fingerprint& ours = call_.fingerprint;
  bool any = false;
  for (int peer = 0; peer < transport_.ranks(); ++peer) {
    if (peer == rank_ || (running_ && peer < arrival_cursor_)) continue;
    Fingerprint theirs;
    Disagreement here;
    here.peer = peer;
    if (!transport_.HasArrived(lane_, peer, index_)) {
      if (!CallInOtherLane(peer, ours.sequence, &theirs)) continue;
      here.mismatch = DifferentCalls(peer, theirs, ours);
    } else if (!running_) {
      continue;  // A refused operation is compared with nothing.
    } else if (theirs = transport_.ArrivalOf(lane_, peer, index_);
               theirs.sequence == ours.sequence) {
      if (theirs.refused == 0 && Matches(ours, theirs)) continue;
      here.mismatch = DifferentCalls(peer, theirs, ours);
    } else if (Fingerprint other; theirs.sequence > ours.sequence) {
      // The peer's call under our number went to the other lane, and the peer on to this one.
      here.explained = CallInOtherLane(peer, ours.sequence, &other);
      here.mismatch = DifferentCalls(peer, here.explained ? other : theirs, ours);
    } else {
      here.explained = CallInOtherLane(rank_, theirs.sequence, &other);
      here.mismatch = DifferentCalls(peer, theirs, here.explained ? other : ours);
    }
    if (any && !here.explained) continue;
    any = true;
    *found = std::move(here);
    if (found->explained) return true;
  }
  return any;
}

bool Execution::CallInOtherLane(int rank, std::uint64_t sequence, Fingerprint* call) const {
  for (int lane = 0; lane < kLanes; ++lane)
    if (lane != lane_ && transport_.LatestArrival(lane, rank, call) && call->sequence == sequence)
      return true;
  return false;
}

}  // namespace tidegate
