// The node service's connections: one request and one reply each, never waited for.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "collectives/transport/shm/node_service.h"
#include "common/log.h"

namespace tidegate {
namespace {

/// A peer sends its request right after it connected; one that takes longer is stopped (and will
/// connect again) or is no peer.
constexpr Nanoseconds kRequestTimeout = std::chrono::seconds(5);
/// More than a node's ranks that all link at once; the rest waits in the socket's backlog.
constexpr std::size_t kMaxIncoming = 256;
constexpr Nanoseconds kRetryInterval = std::chrono::milliseconds(20);
constexpr Nanoseconds kAcceptPause = std::chrono::milliseconds(100);

/// Polls instead of waiting.
constexpr TimePoint kAtOnce{};

void Warn(const std::string& text) { Log(LogLevel::kWarn, text); }

}  // namespace

void NodeService::AcceptAll(TimePoint now) {
  if (now < accept_at_) return;
  while (incoming_.size() < kMaxIncoming) {
    Result<UniqueFd> socket = AcceptConnection(listener_.get());
    if (!socket.ok()) {
      Warn("cannot accept a connection: " + socket.status().message());
      accept_at_ = now + kAcceptPause;
      return;
    }
    if (!socket.value().valid()) return;
    const Result<PeerCredentials> peer = GetPeerCredentials(socket.value().get());
    if (!peer.ok() || peer.value().uid != geteuid()) {
      Warn("refused a connection from " +
           (peer.ok() ? "process " + std::to_string(peer.value().pid) + " of user " +
                            std::to_string(peer.value().uid) + ": all ranks must run as one user"
                      : "an unknown process: " + peer.status().message()));
      continue;
    }
    incoming_.push_back({.socket = std::move(socket).value(), .deadline = now + kRequestTimeout});
  }
  accept_at_ = now + kRetryInterval;
}

void NodeService::ServeIncoming(TimePoint now) {
  for (auto entry = incoming_.begin(); entry != incoming_.end();) {
    const int socket = entry->socket.get();
    std::array<std::byte, sizeof(NodeRequest)> buffer;
    const Result<Message> message = ReceiveMessage(socket, buffer, kAtOnce);
    if (!message.ok() && message.status().code() == StatusCode::kTimeout && now < entry->deadline) {
      ++entry;
      continue;
    }
    if (!message.ok()) {
      Warn("dropped a connection to " + address_ + ": " + message.status().message());
    } else if (message.value().size > 0) {
      const Result<NodeRequest> request =
          ParseNodeRequest(std::span(buffer).first(message.value().size));
      if (request.ok()) {
        Answer(socket, request.value(), message.value());
      } else {
        Warn("refused a request to " + address_ + ": " + request.status().message());
        // Its header tells the other side our version.
        const NodeReply reply{.outcome = Outcome::kRefused};
        (void)SendMessage(socket, BytesOf(reply), {}, kAtOnce).ok();
      }
    }
    entry = incoming_.erase(entry);
  }
}

void NodeService::Answer(int socket, const NodeRequest& request, const Message& message) {
  NodeReply reply{.outcome = Outcome::kRefused};
  std::optional<int> fd;
  if (request.receiver != address_) {
    Warn("refused a request to " + address_ + " that was meant for " + request.receiver);
  } else if (request.kind == RequestKind::kSegment) {
    const auto offer = offers_.find(request.key.words);
    if (offer != offers_.end()) fd = offer->second;
  } else {
    const Result<PeerCredentials> credentials = GetPeerCredentials(socket);
    const std::string sender = request.sender;
    const bool honest =
        credentials.ok() &&
        sender.starts_with("tidegate-" + std::to_string(credentials.value().pid) + "-");
    if (!honest || message.fds.size() != 1) {
      Warn("refused a link from " + sender + ": it has " + std::to_string(message.fds.size()) +
           " descriptors and comes from process " +
           (credentials.ok() ? std::to_string(credentials.value().pid) : "?"));
    } else {
      const std::shared_ptr<Peer> peer = PeerAt(sender);
      if (!peer->process_) peer->process_ = WatchLocked(credentials.value().pid, 0);
      const Status completed = CompleteLink(*peer, message.fds.front().get());
      if (completed.ok())
        fd = page_fd_.get();
      else
        Warn("refused a link from " + sender + ": " + completed.message());
    }
  }
  if (fd) reply.outcome = Outcome::kDone;
  // Cannot block: the socket has sent nothing before. A peer that is gone needs no reply.
  (void)SendMessage(socket, BytesOf(reply),
                    fd ? std::span<const int>(&*fd, 1) : std::span<const int>(), kAtOnce)
      .ok();
}

void NodeService::AdvanceOutgoing(TimePoint now) {
  for (auto entry = outgoing_.begin(); entry != outgoing_.end();) {
    // Done when the peer asked first, too.
    if (entry->peer->doorbell() == nullptr) {
      if (entry->socket.valid())
        FinishLink(*entry, now);
      else if (entry->retry_at <= now)
        Connect(*entry, now);
    }
    const bool over = entry->peer->doorbell() != nullptr || entry->peer->dead();
    entry = over ? outgoing_.erase(entry) : std::next(entry);
  }
}

void NodeService::Connect(Outgoing& outgoing, TimePoint now) {
  Peer& peer = *outgoing.peer;
  Result<UniqueFd> socket = ConnectAbstract(peer.address(), kAtOnce);
  if (!socket.ok()) {
    if (socket.status().code() == StatusCode::kPeerLost) {
      peer.dead_.store(true, std::memory_order_release);
      news_of_death_ = true;
    } else {
      RetryLater(outgoing, socket.status(), now);
    }
    return;
  }
  const Result<PeerCredentials> credentials = GetPeerCredentials(socket.value().get());
  if (!credentials.ok()) return RetryLater(outgoing, credentials.status(), now);
  // Opened while the connection stands: should the pid be reused meanwhile, no reply will come.
  if (!peer.process_) peer.process_ = WatchLocked(credentials.value().pid, 0);
  const NodeRequest request = MakeNodeRequest(RequestKind::kLink, address_, peer.address(), {});
  const int fd = page_fd_.get();
  const Status sent =
      SendMessage(socket.value().get(), BytesOf(request), std::span(&fd, 1), kAtOnce);
  if (!sent.ok()) return RetryLater(outgoing, sent, now);
  outgoing.socket = std::move(socket).value();
}

void NodeService::FinishLink(Outgoing& outgoing, TimePoint now) {
  std::array<std::byte, sizeof(NodeReply)> buffer;
  const Result<Message> message = ReceiveMessage(outgoing.socket.get(), buffer, kAtOnce);
  if (!message.ok()) {
    // No deadline of its own: the peer may be stopped, and goes on or dies.
    if (message.status().code() != StatusCode::kTimeout)
      RetryLater(outgoing, message.status(), now);
    return;
  }
  if (message.value().size == 0)
    return RetryLater(outgoing, Status(StatusCode::kPeerLost, "closed without a reply"), now);
  const Result<NodeReply> reply = ParseNodeReply(std::span(buffer).first(message.value().size));
  if (!reply.ok()) return RetryLater(outgoing, reply.status(), now);
  if (reply.value().outcome != Outcome::kDone || message.value().fds.size() != 1)
    return RetryLater(outgoing, Status(StatusCode::kPeerLost, "the link was refused"), now);
  const Status completed = CompleteLink(*outgoing.peer, message.value().fds.front().get());
  if (!completed.ok()) RetryLater(outgoing, completed, now);
}

void NodeService::RetryLater(Outgoing& outgoing, const Status& reason, TimePoint now) {
  outgoing.socket.Reset();
  outgoing.retry_at = now + kRetryInterval;
  // A peer that closes because it is dying is reported as dead, in a moment.
  if (reason.code() == StatusCode::kPeerLost || outgoing.complained) return;
  outgoing.complained = true;
  Warn("linking to " + outgoing.peer->address() + " failed, trying again: " + reason.message());
}

Status NodeService::CompleteLink(Peer& peer, int page_fd) {
  if (peer.doorbell() != nullptr) return Status();
  Result<Mapping> page = Mapping::Map(page_fd, page_.size());
  if (!page.ok()) return page.status();
  peer.page_ = std::move(page).value();
  auto* const doorbell = reinterpret_cast<Doorbell*>(peer.page_.data());
  peer.doorbell_.store(doorbell, std::memory_order_release);
  // For what happened while this process could not ring yet. The fence in Ring comes after the
  // store above: whoever still finds no doorbell wrote before this fence what the peer is to see.
  doorbell->Ring();
  return Status();
}

}  // namespace tidegate
