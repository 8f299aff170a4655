#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/unique_fd.h"
#include "offload/memory/node_segment.h"

namespace tidegate::offload {

// How the ranks of a node come to map one segment: rank 0 creates it, listens, and tells the others
// its address in whatever way they have (a c10d store); they connect and get the descriptor, so the
// memory needs no name and no file. Nothing is left behind by a process that is killed at any
// point.

/// Asked some ten times a second while a function waits; anything but ok ends the wait with that.
/// May be null.
using StopCheck = std::function<Status()>;

/// Rank 0's end. One thread.
class SegmentHost {
 public:
  /// Listens at a fresh random address in the abstract namespace. Others may connect from now on.
  static Result<SegmentHost> Listen(std::shared_ptr<const NodeSegment> segment);

  /// What JoinSegment needs; short, printable.
  const std::string& address() const { return address_; }

  /// Hands the segment out until each of ranks 1 and up has it, or has been refused: processes of
  /// other users, and those that ask for a rank that another has or for another number of ranks,
  /// are. kTimeout at `deadline`, naming the ranks that did not come: what a rank that died before
  /// looks like. May be called again.
  Status Serve(TimePoint deadline, const StopCheck& stop = nullptr);

 private:
  SegmentHost(std::shared_ptr<const NodeSegment> segment, std::string address, UniqueFd listener)
      : segment_(std::move(segment)),
        address_(std::move(address)),
        listener_(std::move(listener)),
        joined_(static_cast<std::size_t>(segment_->ranks()), false) {}

  std::string Absent() const;
  Status AcceptAll();
  /// Answers what is there; false: not yet.
  bool Answer(int connection);

  std::shared_ptr<const NodeSegment> segment_;
  std::string address_;
  UniqueFd listener_;
  std::vector<UniqueFd> connections_;  ///< From which nothing has come yet.
  std::vector<bool> joined_;           ///< By rank; that of rank 0 means nothing.
};

/// The segment that rank 0 hands out at `address`, for rank `rank` (1 or up) of `ranks`.
/// kPeerLost when rank 0 has gone or is done, kMismatch when it sees the node otherwise, kTimeout
/// at `deadline`. Blocks until rank 0 serves. Any thread.
Result<std::shared_ptr<const NodeSegment>> JoinSegment(const std::string& address, int rank,
                                                       int ranks, TimePoint deadline,
                                                       const StopCheck& stop = nullptr);

}  // namespace tidegate::offload
