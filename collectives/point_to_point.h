#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
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
  int peer = 0;  ///< Of a receive also kAnySource.
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
///
/// A receive from any source takes its place when it is called, too: it gets the first message of
/// its tag that no earlier receive of that tag takes, whoever sends it. Which one is known only
/// when somebody sends, so:
///   1. The receiver asks every other rank whether its next send of the tag (the one with the
///   number
///      that the next receive from it would have) has been called. The question travels in the ring
///      of announcements; a rank is asked once for each number.
///   2. A sender keeps the question until it has such a send, then offers it. It is bound to
///      nothing: the send waits for its receive as before. A receive announced under the number
///      that was asked for takes the question back.
///   3. The receiver gives the receive to a sender whose offer stands, in turn where there are
///      several, and announces it to that one like any other receive. Offers not taken stand until
///      a receive is announced under their number.
/// Receives of the tag called after one that is still open wait with it, because their numbers
/// depend on whom it gets. That delays none of them: a message that one of them could take, the
/// open one takes first. So everything that waits, waits for a send that has not been called.
///
/// A receive from any source fails with kPeerLost when all other ranks have left.
///
/// Nothing that a peer writes is trusted: counts, kinds, offers that nobody asked for and pieces
/// that answer no receive fail the group. Driven by the progress thread; Post is thread-safe.
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
    std::deque<Send> sends;                           ///< In order of their calls.
    std::map<std::uint64_t, Receive> receives;        ///< By id, which is in order of their calls.
    std::vector<PostedReceive> wanted;                ///< Announced by the peer, not yet answered.
    std::map<std::int64_t, std::uint64_t> questions;  ///< Of the peer, by tag: not yet answered.
    std::map<std::int64_t, std::uint64_t> asked;      ///< Numbers this rank last asked for, by tag.
    std::map<std::int64_t, std::uint64_t> offered;    ///< Numbers the peer last offered, by tag.
    std::uint64_t next_id = 1;
    bool streaming = false;  ///< sends.front() is being sent as the answer to streaming_id.
    std::uint64_t streaming_id = 0;
    std::uint64_t streamed = 0;
  };

  void TakePosted();
  void Number(Transfer receive);
  bool Idle();
  // Any source (any_source.cc).
  bool MatchAnySource();
  bool TakeOffers(int rank, Peer& peer);
  int ChooseSender(std::int64_t tag);
  bool Ask(std::int64_t tag);
  bool Offer(int rank, Peer& peer);
  bool CheckAnySource(const std::vector<bool>& left, FinishedOperations* finished);
  std::vector<bool> RanksThatLeft() const;
  bool DrivePeer(int rank, Peer& peer, FinishedOperations* finished);
  bool Announce(int rank, Peer& peer);
  bool TakeAnnouncements(int rank, Peer& peer);
  bool Match(int rank, Peer& peer);
  bool StreamOut(int rank, Peer& peer, FinishedOperations* finished);
  bool StreamIn(int rank, Peer& peer, FinishedOperations* finished);
  void CheckWaits(int rank, Peer& peer, bool had_left, FinishedOperations* finished);
  bool FailCorrupt(int rank, const std::string& what);
  void FailAll(FinishedOperations* finished);
  void Finish(const Transfer& transfer, Status status, FinishedOperations* finished);

  GroupContext& context_;
  const Clock& clock_;
  // Of the progress thread.
  std::vector<Peer> peers_;
  /// By tag: receives from the first on that is from any source and has not been matched.
  std::map<std::int64_t, std::deque<Transfer>> open_;
  int next_sender_ = 0;  ///< Whose offer is looked at first.

  std::mutex mutex_;
  std::vector<Transfer> posted_sends_;  // Guarded, as the rest.
  std::vector<Transfer> posted_receives_;
  std::size_t unfinished_ = 0;
};

/// "recv(float32, 400 bytes, tag 3) seq 7".
std::string Describe(const Transfer& transfer);

}  // namespace tidegate
