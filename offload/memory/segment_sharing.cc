#include "offload/memory/segment_sharing.h"

#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>

#include "common/ipc/unix_socket.h"
#include "common/log.h"
#include "common/units.h"

namespace tidegate::offload {
namespace {

// One request and one reply a connection. Magic and version lead every message of every version.
constexpr std::uint64_t kMagic = 0x7464677461726e61;  // "tdgtarna"
constexpr std::uint32_t kVersion = 1;

struct JoinRequest {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
  std::uint32_t unused = 0;
};

enum class JoinOutcome : std::uint32_t { kJoined = 1, kRefused = 2 };

struct JoinReply {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  JoinOutcome outcome = JoinOutcome::kRefused;
  std::uint64_t slice_bytes = 0;
  std::int32_t ranks = 0;
  std::uint32_t page_kind = 0;
  char text[240] = {};  ///< Why the pages are of no better kind, or why the rank was refused.
};

constexpr Nanoseconds kLookEvery = std::chrono::milliseconds(100);

template <typename T>
std::span<const std::byte> MessageOf(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

JoinReply MakeReply(JoinOutcome outcome, const std::string& text) {
  JoinReply reply;
  reply.outcome = outcome;
  std::memcpy(reply.text, text.data(), std::min(text.size(), sizeof(reply.text) - 1));
  return reply;
}

/// Whether to go on waiting at all: the check of the caller first, then the deadline.
Status CheckWait(TimePoint deadline, const StopCheck& stop) {
  if (stop) TIDEGATE_RETURN_IF_ERROR(stop());
  if (SteadyClock().Now() < deadline) return Status();
  return Status(StatusCode::kTimeout, "timed out");
}

TimePoint NextLook(TimePoint deadline) {
  return std::min(deadline, SteadyClock().Now() + kLookEvery);
}

/// `step(until)` again and again while it times out, with a look at `stop` in between.
template <typename Step>
auto Repeat(TimePoint deadline, const StopCheck& stop, const Step& step)
    -> decltype(step(deadline)) {
  for (;;) {
    auto result = step(NextLook(deadline));
    if (result.ok() || result.status().code() != StatusCode::kTimeout) return result;
    if (Status waiting = CheckWait(deadline, stop); !waiting.ok()) return waiting;
  }
}

Result<std::string> RandomAddress() {
  std::array<std::uint64_t, 2> words{};
  if (getrandom(words.data(), sizeof(words), 0) != static_cast<ssize_t>(sizeof(words)))
    return ErrnoStatus(errno, "getrandom");
  char text[96];
  std::snprintf(text, sizeof(text), "tidegate-arena-%d-%016llx%016llx", static_cast<int>(getpid()),
                static_cast<unsigned long long>(words[0]),
                static_cast<unsigned long long>(words[1]));
  return std::string(text);
}

}  // namespace

Result<SegmentHost> SegmentHost::Listen(std::shared_ptr<const NodeSegment> segment) {
  Result<std::string> address = RandomAddress();
  if (!address.ok()) return address.status();
  Result<UniqueFd> listener = ListenAbstract(address.value());
  if (!listener.ok()) return listener.status();
  return SegmentHost(std::move(segment), std::move(address).value(), std::move(listener).value());
}

Status SegmentHost::Serve(TimePoint deadline, const StopCheck& stop) {
  for (;;) {
    const std::string absent = Absent();
    if (absent.empty()) return Status();
    TIDEGATE_RETURN_IF_ERROR(AcceptAll());
    std::erase_if(connections_, [this](const UniqueFd& each) { return Answer(each.get()); });
    if (Absent().empty()) continue;
    if (Status waiting = CheckWait(deadline, stop); !waiting.ok())
      return Status(waiting.code(), waiting.message() +
                                        " handing out the arena of this node: local "
                                        "ranks " +
                                        absent + " of " + std::to_string(segment_->ranks()) +
                                        " have not come");
    std::vector<pollfd> waits{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const UniqueFd& each : connections_)
      waits.push_back({.fd = each.get(), .events = POLLIN, .revents = 0});
    const Nanoseconds left = NextLook(deadline) - SteadyClock().Now();
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    if (poll(waits.data(), waits.size(), static_cast<int>(std::max<long>(milliseconds, 0))) < 0 &&
        errno != EINTR)
      return ErrnoStatus(errno, "poll of the arena's socket");
  }
}

/// "1, 3"; empty when all are there.
std::string SegmentHost::Absent() const {
  std::string ranks;
  for (std::size_t rank = 1; rank < joined_.size(); ++rank)
    if (!joined_[rank]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  return ranks;
}

Status SegmentHost::AcceptAll() {
  for (;;) {
    Result<UniqueFd> connection = AcceptConnection(listener_.get());
    if (!connection.ok()) return connection.status();
    if (!connection.value().valid()) return Status();
    // The address is no secret on this machine: /proc/net/unix shows it to everybody.
    const Result<PeerCredentials> peer = GetPeerCredentials(connection.value().get());
    if (peer.ok() && peer.value().uid == geteuid())
      connections_.push_back(std::move(connection).value());
  }
}

bool SegmentHost::Answer(int connection) {
  JoinRequest request;
  const Result<Message> message = ReceiveMessage(
      connection, std::as_writable_bytes(std::span(&request, 1)), SteadyClock().Now());
  if (message.status().code() == StatusCode::kTimeout) return false;
  // Gone, or no tidegate: what is missed then is the rank.
  if (!message.ok() || message.value().size != sizeof(request) || request.magic != kMagic)
    return true;
  const int ranks = segment_->ranks();
  std::string refusal;
  if (request.version != kVersion)
    refusal = "rank 0 has protocol version " + std::to_string(kVersion) + ", rank " +
              std::to_string(request.rank) + " has " + std::to_string(request.version) +
              "; use one tidegate on all ranks";
  else if (request.ranks != ranks || request.rank < 1 || request.rank >= ranks)
    refusal = "local rank 0 shares its arena among " + std::to_string(ranks) + " ranks, rank " +
              std::to_string(request.rank) + " expects " + std::to_string(request.ranks);
  else if (joined_[static_cast<std::size_t>(request.rank)])
    refusal = "another process is local rank " + std::to_string(request.rank) + " already";
  JoinReply reply = refusal.empty() ? MakeReply(JoinOutcome::kJoined, segment_->pages().reason)
                                    : MakeReply(JoinOutcome::kRefused, refusal);
  reply.slice_bytes = segment_->slice_bytes();
  reply.ranks = ranks;
  reply.page_kind = static_cast<std::uint32_t>(segment_->pages().kind);
  const int fd = segment_->fd();
  // There is room: it is the only message.
  const Status sent = SendMessage(
      connection, MessageOf(reply),
      refusal.empty() ? std::span<const int>(&fd, 1) : std::span<const int>(), SteadyClock().Now());
  if (!refusal.empty() || !sent.ok())
    Log(LogLevel::kWarn, "arena: " + (refusal.empty() ? sent.message() : refusal));
  else
    joined_[static_cast<std::size_t>(request.rank)] = true;
  return true;
}

Result<std::shared_ptr<const NodeSegment>> JoinSegment(const std::string& address, int rank,
                                                       int ranks, TimePoint deadline,
                                                       const StopCheck& stop) {
  const auto told = [&](const Status& status) {
    return Status(status.code(), "local rank " + std::to_string(rank) +
                                     " cannot have the arena of rank 0: " + status.message());
  };
  const Result<UniqueFd> connection =
      Repeat(deadline, stop, [&](TimePoint until) { return ConnectAbstract(address, until); });
  if (!connection.ok()) return told(connection.status());
  JoinRequest request;
  request.rank = rank;
  request.ranks = ranks;
  const int socket = connection.value().get();
  if (Status sent = SendMessage(socket, MessageOf(request), {}, NextLook(deadline)); !sent.ok())
    return told(sent);
  JoinReply reply;
  Result<Message> message = Repeat(deadline, stop, [&](TimePoint until) {
    return ReceiveMessage(socket, std::as_writable_bytes(std::span(&reply, 1)), until);
  });
  if (!message.ok()) return told(message.status());
  if (message.value().size == 0)
    return told(Status(StatusCode::kPeerLost, "it has closed the connection"));
  reply.text[sizeof(reply.text) - 1] = '\0';
  if (message.value().size != sizeof(reply) || reply.magic != kMagic)
    return told(Status(StatusCode::kMismatch, "what answered at @" + address + " is no tidegate"));
  if (reply.version != kVersion || reply.outcome != JoinOutcome::kJoined)
    return told(Status(StatusCode::kMismatch, reply.text));
  if (message.value().fds.size() != 1 ||
      reply.page_kind > static_cast<std::uint32_t>(PageKind::kSmall))
    return told(Status(StatusCode::kMismatch, "it sent a reply that makes no sense"));
  ChosenPages pages{.kind = static_cast<PageKind>(reply.page_kind), .reason = reply.text};
  Result<std::shared_ptr<const NodeSegment>> segment = NodeSegment::Adopt(
      std::move(message.value().fds[0]), reply.ranks, reply.slice_bytes, std::move(pages));
  return segment.ok() ? std::move(segment) : told(segment.status());
}

}  // namespace tidegate::offload
