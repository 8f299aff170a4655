// ShmTransport::Decline: how a rank that has not attached tells the others that it never will.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "collectives/transport/memory_transport.h"
#include "collectives/transport/segment_layout.h"
#include "collectives/transport/shm/attachment.h"
#include "collectives/transport/shm/process.h"
#include "collectives/transport/shm/rendezvous.h"
#include "collectives/transport/shm/shm_transport.h"
#include "collectives/transport/shm/wire.h"
#include "common/clock.h"
#include "common/ipc/unix_socket.h"
#include "common/mapping.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace tidegate {
namespace {

/// Looks only whether the key is there.
constexpr Nanoseconds kGlance = std::chrono::milliseconds(1);
constexpr Nanoseconds kFetchLimit = std::chrono::milliseconds(50);

/// One try to get the segment, as a joining rank does, but without a service of its own.
Result<UniqueFd> FetchOnce(const SegmentDescription& description, TimePoint deadline) {
  const Result<UniqueFd> socket = ConnectAbstract(description.address, deadline);
  if (!socket.ok()) return socket.status();
  const int fd = socket.value().get();
  const Result<PeerCredentials> creator = GetPeerCredentials(fd);
  if (!creator.ok()) return creator.status();
  if (creator.value().uid != geteuid())
    return Status(StatusCode::kUnsupported, "the creator runs as another user");
  const NodeRequest request =
      MakeNodeRequest(RequestKind::kSegment, "", description.address, description.key);
  TIDEGATE_RETURN_IF_ERROR(SendMessage(fd, BytesOf(request), {}, deadline));
  std::array<std::byte, sizeof(NodeReply)> buffer;
  Result<Message> message = ReceiveMessage(fd, buffer, deadline);
  if (!message.ok()) return message.status();
  const Result<NodeReply> reply = ParseNodeReply(std::span(buffer).first(message.value().size));
  if (!reply.ok()) return reply.status();
  if (reply.value().outcome != Outcome::kDone || message.value().fds.size() != 1)
    return Status(StatusCode::kPeerLost, "the creator has left");
  return std::move(message.value().fds.front());
}

/// Writes the failure of a group that this rank is not in: touches the header only, which is the
/// same for any number of ranks and any stage.
class FailureWriter final : public MemoryTransport {
 public:
  FailureWriter(std::byte* base, const SegmentLayout& layout, int rank)
      : MemoryTransport(base, layout, rank) {}
  Status CommitStage(int, std::size_t, std::size_t) override { return Status(); }
  Status CommitPair(int, bool) override { return Status(); }
  /// Nothing: while this rank is missing, max_sleep makes all others look every few milliseconds.
  void Wake() override {}
};

}  // namespace

void ShmTransport::MarkLeft(std::byte* base, const SegmentLayout& layout, int rank,
                            const ProcessIdentity& identity) {
  auto& record = *reinterpret_cast<RankRecord*>(base + layout.RankRecordAt(rank));
  if (record.state.load(std::memory_order_acquire) != RankRecord::kAbsent) return;
  // Several ranks may do this at once for one that does not do it itself: all write the same.
  record.pid = identity.pid;
  const std::size_t length = std::min(identity.host.size(), sizeof(record.host) - 1);
  std::memcpy(record.host, identity.host.data(), length);
  std::uint32_t absent = RankRecord::kAbsent;
  record.state.compare_exchange_strong(absent, RankRecord::kLeft, std::memory_order_acq_rel);
}

void ShmTransport::Decline(const Options& options, const Status& reason) {
  const Result<ProcessIdentity> self = ThisProcess(options.node_id);
  if (options.ranks == 1 || !self.ok()) return;
  Presence presence{.identity = self.value(), .left = reason.ok(), .failure = Status()};
  if (!reason.ok()) {
    // The signal was this rank's own matter.
    const StatusCode code =
        reason.code() == StatusCode::kInterrupted ? StatusCode::kAborted : reason.code();
    presence.failure =
        Status(code, CannotJoinText(NameOf(options.rank, self.value()),
                                    DescribeGroup(options.group_name, options.ranks), reason));
  }
  // First the presence, then the segment: a rank that attaches does it in the opposite order, so
  // that one of the two sees the other.
  if (!options.bootstrap->Set(PresenceKey(options.rank), Encode(presence)).ok()) return;
  const Result<std::string> text = options.bootstrap->Get(kSegmentKey, kGlance);
  if (!text.ok()) return;
  const Result<SegmentDescription> description = ParseSegmentDescription(text.value());
  if (!description.ok()) return;
  const Result<UniqueFd> segment =
      FetchOnce(description.value(), SteadyClock().Now() + kFetchLimit);
  if (!segment.ok()) return;

  const SegmentLayout layout(options.ranks, options.stage_bytes);
  const std::size_t record_at = layout.RankRecordAt(options.rank);
  const Result<Mapping> mapping =
      Mapping::Map(segment.value().get(), record_at + sizeof(RankRecord));
  if (!mapping.ok()) return;
  std::byte* const base = mapping.value().data();
  const auto& header = *reinterpret_cast<const SegmentHeader*>(base);
  if (header.magic != kSegmentMagic || header.version != kSegmentVersion) return;
  const bool has_record = static_cast<std::uint32_t>(options.rank) < header.ranks;
  if (reason.ok()) {
    if (has_record) MarkLeft(base, layout, options.rank, self.value());
    return;
  }
  const auto& record = *reinterpret_cast<const RankRecord*>(base + record_at);
  if (has_record && record.state.load(std::memory_order_acquire) != RankRecord::kAbsent) return;
  FailureWriter(base, layout, options.rank)
      .Fail({presence.failure.code(), options.rank, options.rank, presence.failure.message()});
}

}  // namespace tidegate
