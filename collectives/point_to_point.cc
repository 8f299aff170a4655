#include "collectives/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/units.h"

namespace tidegate {

std::string Describe(const Transfer& transfer) {
  return std::string(transfer.operation->name()) + "(" + std::string(NameOf(transfer.dtype)) +
         ", " + std::to_string(transfer.data.bytes) + " bytes, tag " +
         std::to_string(transfer.tag) + (transfer.peer == kAnySource ? ", from any rank" : "") +
         ") seq " + std::to_string(transfer.operation->sequence());
}

PointToPoint::PointToPoint(GroupContext& context, const Clock& clock)
    : context_(context), clock_(clock), peers_(static_cast<std::size_t>(context.ranks())) {}

void PointToPoint::PostSend(Transfer transfer) {
  const std::lock_guard lock(mutex_);
  posted_sends_.push_back(std::move(transfer));
  ++unfinished_;
}

void PointToPoint::PostReceive(Transfer transfer) {
  const std::lock_guard lock(mutex_);
  posted_receives_.push_back(std::move(transfer));
  ++unfinished_;
}

bool PointToPoint::Idle() {
  const std::lock_guard lock(mutex_);
  return unfinished_ == 0;
}

void PointToPoint::TakePosted() {
  const std::lock_guard lock(mutex_);
  for (Transfer& transfer : posted_sends_) {
    Peer& peer = peers_[static_cast<std::size_t>(transfer.peer)];
    const std::uint64_t number = peer.sends_by_tag[transfer.tag]++;
    peer.sends.push_back({std::move(transfer), number});
  }
  for (Transfer& transfer : posted_receives_) {
    const auto open = open_.find(transfer.tag);
    if (open != open_.end()) {
      open->second.push_back(std::move(transfer));
    } else if (transfer.peer == kAnySource) {
      open_[transfer.tag].push_back(std::move(transfer));
    } else {
      Number(std::move(transfer));
    }
  }
  posted_sends_.clear();
  posted_receives_.clear();
}

void PointToPoint::Number(Transfer receive) {
  Peer& peer = peers_[static_cast<std::size_t>(receive.peer)];
  const std::uint64_t number = peer.receives_by_tag[receive.tag]++;
  peer.receives.emplace(peer.next_id++, Receive{std::move(receive), number});
}

DriveResult PointToPoint::Drive(FinishedOperations* finished) {
  TakePosted();
  DriveResult result;
  if (Idle()) return result;
  if (context_.failed()) {
    FailAll(finished);
    result.progressed = true;
    return result;
  }
  if (!open_.empty()) {
    const std::vector<bool> left = RanksThatLeft();
    result.progressed = MatchAnySource();
    if (!result.progressed) result.progressed = CheckAnySource(left, finished);
    for (const auto& [tag, receives] : open_)
      for (const Transfer& receive : receives)
        result.deadline = std::min(result.deadline, receive.deadline);
  }
  for (int rank = 0; rank < context_.ranks(); ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (rank == context_.rank() || (peer.sends.empty() && peer.receives.empty())) continue;
    const bool had_left = context_.transport().HasLeft(rank);
    const bool progressed = DrivePeer(rank, peer, finished);
    result.progressed = result.progressed || progressed;
    if (!progressed) CheckWaits(rank, peer, had_left, finished);
    for (const Send& send : peer.sends) result.deadline = std::min(result.deadline, send.deadline);
    for (const auto& [id, receive] : peer.receives)
      result.deadline = std::min(result.deadline, receive.deadline);
  }
  result.pending = result.awaits_peers = !Idle();
  return result;
}

bool PointToPoint::DrivePeer(int rank, Peer& peer, FinishedOperations* finished) {
  const Status committed = context_.transport().CommitPair(rank, /*sends=*/!peer.sends.empty());
  if (!committed.ok()) {
    context_.Fail(committed.code(), context_.rank(), committed.message());
    return true;
  }
  bool progressed = Announce(rank, peer);
  progressed = TakeAnnouncements(rank, peer) || progressed;
  progressed = Offer(rank, peer) || progressed;
  progressed = Match(rank, peer) || progressed;
  progressed = StreamOut(rank, peer, finished) || progressed;
  progressed = StreamIn(rank, peer, finished) || progressed;
  if (progressed) context_.transport().Wake();
  return progressed;
}

bool PointToPoint::Announce(int rank, Peer& peer) {
  PairChannel& channel = context_.transport().Pair(rank, context_.rank());
  bool progressed = false;
  for (auto& [id, receive] : peer.receives) {
    if (receive.announced) continue;
    const std::uint64_t written = channel.posts_written.load(std::memory_order_relaxed);
    // Pairs with the release in TakeAnnouncements: the entry has been read.
    if (written - channel.posts_read.load(std::memory_order_acquire) >= PairChannel::kPosts) break;
    channel.posts[written % PairChannel::kPosts] = {receive.tag,
                                                    receive.number,
                                                    receive.data.bytes,
                                                    id,
                                                    static_cast<std::uint32_t>(receive.dtype),
                                                    PostedReceive::kReceive};
    channel.posts_written.store(written + 1, std::memory_order_release);
    receive.announced = true;
    progressed = true;
  }
  return progressed;
}

bool PointToPoint::TakeAnnouncements(int rank, Peer& peer) {
  PairChannel& channel = context_.transport().Pair(context_.rank(), rank);
  const std::uint64_t written = channel.posts_written.load(std::memory_order_acquire);
  std::uint64_t read = channel.posts_read.load(std::memory_order_relaxed);
  if (read == written) return false;
  if (written - read > PairChannel::kPosts)
    return FailCorrupt(rank, "claims to have announced " + std::to_string(written) +
                                 " receives, more than the channel holds");
  for (; read < written; ++read) {
    const PostedReceive post = channel.posts[read % PairChannel::kPosts];
    if (post.kind == PostedReceive::kQuestion) {
      peer.questions[post.tag] = post.number;
    } else if (post.kind == PostedReceive::kReceive) {
      const auto question = peer.questions.find(post.tag);
      if (question != peer.questions.end() && question->second <= post.number)
        peer.questions.erase(question);
      peer.wanted.push_back(post);
    } else {
      return FailCorrupt(rank, "announced something of unknown kind " + std::to_string(post.kind));
    }
  }
  channel.posts_read.store(read, std::memory_order_release);
  return true;
}

/// Brings the first send whose receive is known to the front and begins to stream it.
bool PointToPoint::Match(int rank, Peer& peer) {
  if (peer.streaming) return false;
  for (auto send = peer.sends.begin(); send != peer.sends.end(); ++send) {
    const auto wanted =
        std::find_if(peer.wanted.begin(), peer.wanted.end(), [&](const PostedReceive& post) {
          return post.tag == send->tag && post.number == send->number;
        });
    if (wanted == peer.wanted.end()) continue;
    if (wanted->bytes != send->data.bytes ||
        wanted->dtype != static_cast<std::uint32_t>(send->dtype)) {
      const bool known = wanted->dtype <= static_cast<std::uint32_t>(DataType::kOther1);
      context_.Fail(
          StatusCode::kMismatch, rank,
          "send and receive differ: rank " + std::to_string(context_.rank()) + " called " +
              Describe(*send) + ", " + context_.transport().DescribePeer(rank) + " called recv(" +
              (known ? std::string(NameOf(static_cast<DataType>(wanted->dtype))) : "unknown type") +
              ", " + std::to_string(wanted->bytes) + " bytes, tag " + std::to_string(wanted->tag) +
              ")");
      return true;
    }
    peer.streaming = true;
    peer.streaming_id = wanted->id;
    peer.streamed = 0;
    peer.wanted.erase(wanted);
    Send matched = std::move(*send);
    peer.sends.erase(send);
    peer.sends.push_front(std::move(matched));
    return true;
  }
  return false;
}

bool PointToPoint::StreamOut(int rank, Peer& peer, FinishedOperations* finished) {
  if (!peer.streaming) return false;
  PairChannel& channel = context_.transport().Pair(context_.rank(), rank);
  const Send& send = peer.sends.front();
  bool progressed = false;
  for (;;) {
    const std::uint64_t written = channel.pieces_written.load(std::memory_order_relaxed);
    // Pairs with the release in StreamIn: the piece has been copied out.
    if (written - channel.pieces_read.load(std::memory_order_acquire) >= PairChannel::kPieces)
      return progressed;
    const std::uint64_t bytes =
        std::min<std::uint64_t>(send.data.bytes - peer.streamed, PairChannel::kPieceBytes);
    const std::size_t slot = written % PairChannel::kPieces;
    if (bytes > 0) std::memcpy(channel.pieces[slot], send.data.data + peer.streamed, bytes);
    channel.piece_headers[slot] = {peer.streaming_id, bytes};
    channel.pieces_written.store(written + 1, std::memory_order_release);
    peer.streamed += bytes;
    progressed = true;
    if (peer.streamed < send.data.bytes) continue;
    Finish(send, Status(), finished);
    peer.sends.pop_front();
    peer.streaming = false;
    return true;
  }
}

bool PointToPoint::StreamIn(int rank, Peer& peer, FinishedOperations* finished) {
  PairChannel& channel = context_.transport().Pair(rank, context_.rank());
  const std::uint64_t written = channel.pieces_written.load(std::memory_order_acquire);
  std::uint64_t read = channel.pieces_read.load(std::memory_order_relaxed);
  if (written - read > PairChannel::kPieces)
    return FailCorrupt(rank, "claims to have written " + std::to_string(written) +
                                 " pieces, more than the channel holds");
  bool progressed = false;
  for (; read < written; progressed = true) {
    const std::size_t slot = read % PairChannel::kPieces;
    const PieceHeader header = channel.piece_headers[slot];
    const auto found = peer.receives.find(header.id);
    if (found == peer.receives.end() ||
        header.bytes > found->second.data.bytes - found->second.received ||
        header.bytes > PairChannel::kPieceBytes)
      return FailCorrupt(rank, "sent a piece of " + std::to_string(header.bytes) +
                                   " bytes that is too long or answers no receive of rank " +
                                   std::to_string(context_.rank()));
    Receive& receive = found->second;
    if (header.bytes > 0)
      std::memcpy(receive.data.data + receive.received, channel.pieces[slot], header.bytes);
    receive.received += header.bytes;
    context_.statistics().CountRead(header.bytes);
    channel.pieces_read.store(++read, std::memory_order_release);
    if (receive.received < receive.data.bytes) continue;
    receive.operation->set_source(rank);
    Finish(receive, Status(), finished);
    peer.receives.erase(found);
  }
  return progressed;
}

/// After a round without progress: has the peer gone, or has a deadline passed?
void PointToPoint::CheckWaits(int rank, Peer& peer, bool had_left, FinishedOperations* finished) {
  // A rank that failed the group before it left has said why.
  if (had_left && context_.failed()) {
    FailAll(finished);
    return;
  }
  if (had_left) {
    const auto gone = [&](const Transfer& transfer) {
      Finish(transfer,
             context_.Explain(
                 Describe(transfer),
                 Status(StatusCode::kPeerLost, context_.transport().DescribePeer(rank) +
                                                   " left the group before it took part; see "
                                                   "that process's own output")),
             finished);
    };
    for (const Send& send : peer.sends) gone(send);
    for (const auto& [id, receive] : peer.receives) gone(receive);
    peer.sends.clear();
    peer.receives.clear();
    peer.streaming = false;
    return;
  }
  const TimePoint now = clock_.Now();
  const auto expired = [&](const Transfer& transfer) {
    if (now < transfer.deadline) return false;
    context_.Fail(StatusCode::kTimeout, rank,
                  Describe(transfer) + " timed out after " +
                      FormatMilliseconds(now - transfer.begun) + " on rank " +
                      std::to_string(context_.rank()) +
                      "; missing: " + context_.transport().DescribePeer(rank));
    return true;
  };
  for (const Send& send : peer.sends)
    if (expired(send)) return;
  for (const auto& [id, receive] : peer.receives)
    if (expired(receive)) return;
}

bool PointToPoint::FailCorrupt(int rank, const std::string& what) {
  context_.Fail(StatusCode::kInternal, rank, context_.transport().DescribePeer(rank) + " " + what);
  return true;
}

void PointToPoint::FailAll(FinishedOperations* finished) {
  for (Peer& peer : peers_) {
    for (const Send& send : peer.sends) Finish(send, context_.FailureOf(Describe(send)), finished);
    for (const auto& [id, receive] : peer.receives)
      Finish(receive, context_.FailureOf(Describe(receive)), finished);
    peer.sends.clear();
    peer.receives.clear();
    peer.streaming = false;
  }
  for (const auto& [tag, receives] : open_)
    for (const Transfer& receive : receives)
      Finish(receive, context_.FailureOf(Describe(receive)), finished);
  open_.clear();
}

void PointToPoint::Finish(const Transfer& transfer, Status status, FinishedOperations* finished) {
  context_.statistics().CountTransfer(transfer.operation->name(), transfer.data.bytes,
                                      clock_.Now() - transfer.begun, !status.ok());
  {
    const std::lock_guard lock(mutex_);
    --unfinished_;
  }
  transfer.operation->Complete(std::move(status));
  finished->push_back(transfer.operation);
}

}  // namespace tidegate
