#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/executor/request.h"
#include "collectives/group_context.h"
#include "collectives/lane.h"
#include "collectives/operation.h"
#include "common/clock.h"

namespace tidegate {

/// One send or receive.
struct Transfer {
  std::shared_ptr<Operation> operation;
  Block data;
  DataType dtype = DataType::kUint8;
  int peer = 0;
  std::int64_t tag = 0;
  TimePoint begun{};
  TimePoint deadline = kNoDeadline;
};

/// Sends and receives of one rank, straight over the pair channels of the group's memory.
///
/// The n-th send of a tag to a peer answers that peer's n-th receive of the tag from this rank.
/// Receives are announced to the sender, which streams a message once its receive is known, so that
/// messages may be received in another order than they were sent, and nothing is buffered.
/// Announced receives are taken out of the channel at once, so that no number of them can block it.
/// Driven by the progress thread; Post is thread-safe.
class PointToPoint {
 public:
  PointToPoint(GroupContext& context, const Clock& clock);

  void PostSend(Transfer transfer);
  void PostReceive(Transfer transfer);

  /// As Lane::Drive.
  DriveResult Drive(FinishedOperations* finished);

 private:
  struct Send : Transfer {
    std::uint64_t number = 0;  ///< Of this tag to this peer.
  };
  struct Receive : Transfer {
    std::uint64_t number = 0;
    std::uint64_t received = 0;
    bool announced = false;
  };
  struct Peer {
    std::map<std::int64_t, std::uint64_t> sends_by_tag;
    std::map<std::int64_t, std::uint64_t> receives_by_tag;
    std::deque<Send> sends;                     ///< In order of their calls.
    std::map<std::uint64_t, Receive> receives;  ///< By id, which is in order of their calls.
    std::vector<PostedReceive> wanted;          ///< Announced by the peer, not yet answered.
    std::uint64_t next_id = 1;
    bool streaming = false;  ///< sends.front() is being sent as the answer to streaming_id.
    std::uint64_t streaming_id = 0;
    std::uint64_t streamed = 0;
  };

  void TakePosted();
  bool Idle();
  bool DrivePeer(int rank, Peer& peer, FinishedOperations* finished);
  bool Announce(int rank, Peer& peer);
  bool TakeAnnouncements(int rank, Peer& peer);
  bool Match(int rank, Peer& peer);
  bool StreamOut(int rank, Peer& peer, FinishedOperations* finished);
  bool StreamIn(int rank, Peer& peer, FinishedOperations* finished);
  void CheckWaits(int rank, Peer& peer, bool had_left, FinishedOperations* finished);
  bool FailCorrupt(int rank, const char* what, std::uint64_t count);
  void FailAll(FinishedOperations* finished);
  void Finish(const Transfer& transfer, Status status, FinishedOperations* finished);

  GroupContext& context_;
  const Clock& clock_;
  std::vector<Peer> peers_;  // Of the progress thread.

  std::mutex mutex_;
  std::vector<Transfer> posted_sends_;  // Guarded, as the rest.
  std::vector<Transfer> posted_receives_;
  std::size_t unfinished_ = 0;
};

}  // namespace tidegate
