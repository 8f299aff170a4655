// Receives from any source, as point_to_point.h describes them.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "collectives/point_to_point.h"
#include "common/units.h"

namespace tidegate {
namespace {

std::uint64_t NextNumber(const std::map<std::int64_t, std::uint64_t>& by_tag, std::int64_t tag) {
  const auto found = by_tag.find(tag);
  return found == by_tag.end() ? 0 : found->second;
}

}  // namespace

/// Gives what is open to whoever offers, and asks for what is still open afterwards.
bool PointToPoint::MatchAnySource() {
  bool progressed = false;
  for (int rank = 0; rank < context_.ranks(); ++rank) {
    if (rank == context_.rank()) continue;
    const Status committed = context_.transport().CommitPair(rank, /*sends=*/false);
    if (!committed.ok()) {
      context_.Fail(committed.code(), context_.rank(), committed.message());
      return true;
    }
    progressed = TakeOffers(rank, peers_[static_cast<std::size_t>(rank)]) || progressed;
    if (context_.failed()) return true;
  }
  for (auto entry = open_.begin(); entry != open_.end();) {
    const std::int64_t tag = entry->first;
    std::deque<Transfer>& receives = entry->second;
    while (!receives.empty()) {
      Transfer& first = receives.front();
      if (first.peer == kAnySource) first.peer = ChooseSender(tag);
      if (first.peer == kAnySource) break;
      Number(std::move(first));
      receives.pop_front();
      progressed = true;
    }
    if (receives.empty()) {
      entry = open_.erase(entry);
    } else {
      progressed = Ask(tag) || progressed;
      ++entry;
    }
  }
  if (progressed) context_.transport().Wake();
  return progressed;
}

bool PointToPoint::TakeOffers(int rank, Peer& peer) {
  PairChannel& channel = context_.transport().Pair(rank, context_.rank());
  // Pairs with the release in Offer.
  const std::uint64_t written = channel.offers_written.load(std::memory_order_acquire);
  std::uint64_t read = channel.offers_read.load(std::memory_order_relaxed);
  if (read == written) return false;
  if (written - read > PairChannel::kOffers)
    return FailCorrupt(rank, "claims to have offered " + std::to_string(written) +
                                 " sends, more than the channel holds");
  for (; read < written; ++read) {
    const OfferedSend offer = channel.offers[read % PairChannel::kOffers];
    const auto asked = peer.asked.find(offer.tag);
    if (asked == peer.asked.end() || offer.number > asked->second)
      return FailCorrupt(rank, "offered send " + std::to_string(offer.number) + " of tag " +
                                   std::to_string(offer.tag) + ", which nobody asked for");
    peer.offered[offer.tag] = offer.number;
  }
  channel.offers_read.store(read, std::memory_order_release);
  return true;
}

/// A rank whose next send of `tag` stands offered; kAnySource when there is none.
int PointToPoint::ChooseSender(std::int64_t tag) {
  for (int i = 0; i < context_.ranks(); ++i) {
    const int rank = (next_sender_ + i) % context_.ranks();
    const Peer& peer = peers_[static_cast<std::size_t>(rank)];
    const auto offered = peer.offered.find(tag);
    // Older offers have been overtaken by receives from that very rank.
    if (offered == peer.offered.end() || offered->second != NextNumber(peer.receives_by_tag, tag))
      continue;
    next_sender_ = (rank + 1) % context_.ranks();
    return rank;
  }
  return kAnySource;
}

bool PointToPoint::Ask(std::int64_t tag) {
  bool progressed = false;
  for (int rank = 0; rank < context_.ranks(); ++rank) {
    if (rank == context_.rank()) continue;
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    const std::uint64_t number = NextNumber(peer.receives_by_tag, tag);
    const auto asked = peer.asked.find(tag);
    if (asked != peer.asked.end() && asked->second == number) continue;
    PairChannel& channel = context_.transport().Pair(rank, context_.rank());
    const std::uint64_t written = channel.posts_written.load(std::memory_order_relaxed);
    // As in Announce. A full ring is emptied as soon as the peer sends, then it is asked.
    if (written - channel.posts_read.load(std::memory_order_acquire) >= PairChannel::kPosts)
      continue;
    channel.posts[written % PairChannel::kPosts] = {.tag = tag,
                                                    .number = number,
                                                    .bytes = 0,
                                                    .id = 0,
                                                    .dtype = 0,
                                                    .kind = PostedReceive::kQuestion};
    channel.posts_written.store(written + 1, std::memory_order_release);
    peer.asked[tag] = number;
    progressed = true;
  }
  return progressed;
}

/// Answers the peer's questions that can be answered.
bool PointToPoint::Offer(int rank, Peer& peer) {
  if (peer.questions.empty()) return false;
  PairChannel& channel = context_.transport().Pair(context_.rank(), rank);
  bool progressed = false;
  for (auto question = peer.questions.begin(); question != peer.questions.end();) {
    const auto& [tag, number] = *question;
    if (NextNumber(peer.sends_by_tag, tag) <= number) {
      ++question;
      continue;
    }
    const std::uint64_t written = channel.offers_written.load(std::memory_order_relaxed);
    // Pairs with the release in TakeOffers: the entry has been read.
    if (written - channel.offers_read.load(std::memory_order_acquire) >= PairChannel::kOffers)
      break;
    channel.offers[written % PairChannel::kOffers] = {tag, number};
    channel.offers_written.store(written + 1, std::memory_order_release);
    question = peer.questions.erase(question);
    progressed = true;
  }
  return progressed;
}

std::vector<bool> PointToPoint::RanksThatLeft() const {
  std::vector<bool> left(static_cast<std::size_t>(context_.ranks()));
  for (int rank = 0; rank < context_.ranks(); ++rank)
    left[static_cast<std::size_t>(rank)] =
        rank != context_.rank() && context_.transport().HasLeft(rank);
  return left;
}

/// After a round without progress; true if that changed something. A rank that left has seen all
/// its sends through: `left` was read before the offers were.
bool PointToPoint::CheckAnySource(const std::vector<bool>& left, FinishedOperations* finished) {
  // A rank that failed the group before it left has said why.
  if (context_.failed()) {
    FailAll(finished);
    return true;
  }
  std::vector<int> all, present;
  for (int rank = 0; rank < context_.ranks(); ++rank) {
    if (rank == context_.rank()) continue;
    all.push_back(rank);
    if (!left[static_cast<std::size_t>(rank)]) present.push_back(rank);
  }
  const TimePoint now = clock_.Now();
  bool changed = false;
  for (auto entry = open_.begin(); entry != open_.end();) {
    const auto lost = std::erase_if(entry->second, [&](const Transfer& receive) {
      const bool any = receive.peer == kAnySource;
      if (any ? !present.empty() : !left[static_cast<std::size_t>(receive.peer)]) return false;
      const std::string who =
          any ? context_.DescribePeers(all) : context_.transport().DescribePeer(receive.peer);
      Finish(receive,
             context_.Explain(
                 Describe(receive),
                 Status(StatusCode::kPeerLost,
                        who + " left the group before it sent; see that process's own output")),
             finished);
      return true;
    });
    changed = changed || lost > 0;
    for (const Transfer& receive : entry->second) {
      if (now < receive.deadline) continue;
      const bool any = receive.peer == kAnySource;
      context_.Fail(StatusCode::kTimeout,
                    any && present.size() > 1 ? -1
                    : any                     ? present.front()
                                              : receive.peer,
                    Describe(receive) + " timed out after " +
                        FormatMilliseconds(now - receive.begun) + " on rank " +
                        std::to_string(context_.rank()) + "; missing: " +
                        (any ? "a send by any of " + context_.DescribePeers(present)
                             : context_.transport().DescribePeer(receive.peer)));
      return true;
    }
    entry = entry->second.empty() ? open_.erase(entry) : std::next(entry);
  }
  return changed;
}

}  // namespace tidegate
