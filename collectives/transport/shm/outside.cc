// What a rank that has not attached tells those that have, who do not look into the store again:
// that it is there, so that they notice its death, or that it never will attach.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
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

/// Looks only whether the key is there, once: every group that is made does.
constexpr Nanoseconds kGlance{1};
constexpr Nanoseconds kFetchLimit = std::chrono::milliseconds(50);

/// The same for any number of ranks and any stage.
std::size_t RecordAt(int rank) { return SegmentLayout(kMaxRanks, 0).RankRecordAt(rank); }

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

/// What a rank that has not attached sees of the group's segment: the header and the records, up to
/// its own.
struct Visit {
  SegmentDescription description;
  Mapping records;

  const SegmentHeader& header() const {
    return *reinterpret_cast<const SegmentHeader*>(records.data());
  }
  /// Null where the segment is for fewer ranks.
  RankRecord* RecordOf(int rank) const {
    if (static_cast<std::uint32_t>(rank) >= header().ranks) return nullptr;
    return reinterpret_cast<RankRecord*>(records.data() + RecordAt(rank));
  }
};

/// Nothing where no segment has been made, or where its maker does not hand it out. First the
/// caller's presence, then this: a rank that attaches does it in the opposite order, so that one of
/// the two sees the other, unless the maker has left by then.
std::optional<Visit> VisitSegment(Bootstrap& bootstrap, int rank) {
  const Result<std::string> text = bootstrap.Get(kSegmentKey, kGlance);
  if (!text.ok()) return std::nullopt;
  const Result<SegmentDescription> description = ParseSegmentDescription(text.value());
  if (!description.ok()) return std::nullopt;
  const Result<UniqueFd> segment =
      FetchOnce(description.value(), SteadyClock().Now() + kFetchLimit);
  if (!segment.ok()) return std::nullopt;
  Result<Mapping> mapping =
      Mapping::Map(segment.value().get(), RecordAt(rank) + sizeof(RankRecord));
  if (!mapping.ok()) return std::nullopt;
  Visit visit{description.value(), std::move(mapping).value()};
  if (visit.header().magic != kSegmentMagic || visit.header().version != kSegmentVersion)
    return std::nullopt;
  return visit;
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

Status ShmTransport::AnnouncePresence(Bootstrap& bootstrap, int rank, const std::string& node_id) {
  const Result<ProcessIdentity> self = ThisProcess(node_id);
  if (!self.ok()) return self.status();
  TIDEGATE_RETURN_IF_ERROR(bootstrap.Set(
      PresenceKey(rank), Encode(Presence{.identity = self.value(), .left = false, .failure = {}})));
  const std::optional<Visit> visit = VisitSegment(bootstrap, rank);
  RankRecord* const record = visit ? visit->RecordOf(rank) : nullptr;
  // What pids mean elsewhere is for Attach to complain about.
  if (record == nullptr ||
      !CheckSameNode(visit->description.creator, visit->description.rank, self.value(), rank).ok())
    return Status();
  record->announced_pid = self.value().pid;
  record->announced_start_time = self.value().start_time;
  std::uint32_t absent = RankRecord::kAbsent;
  record->state.compare_exchange_strong(absent, RankRecord::kAnnounced, std::memory_order_acq_rel);
  return Status();
}

void ShmTransport::MarkLeft(RankRecord& record, const ProcessIdentity& identity) {
  std::uint32_t state = record.state.load(std::memory_order_acquire);
  if (RankRecord::HasAttached(state)) return;
  // Several ranks may do this at once for one that does not do it itself: all write the same.
  record.pid = identity.pid;
  const std::size_t length = std::min(identity.host.size(), sizeof(record.host) - 1);
  std::memcpy(record.host, identity.host.data(), length);
  record.state.compare_exchange_strong(state, RankRecord::kLeft, std::memory_order_acq_rel);
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
  if (!options.bootstrap->Set(PresenceKey(options.rank), Encode(presence)).ok()) return;
  const std::optional<Visit> visit = VisitSegment(*options.bootstrap, options.rank);
  if (!visit) return;
  RankRecord* const record = visit->RecordOf(options.rank);
  if (reason.ok()) {
    if (record != nullptr) MarkLeft(*record, self.value());
    return;
  }
  if (record != nullptr && RankRecord::HasAttached(record->state.load(std::memory_order_acquire)))
    return;
  FailureWriter(visit->records.data(), SegmentLayout(options.ranks, options.stage_bytes),
                options.rank)
      .Fail({presence.failure.code(), options.rank, options.rank, presence.failure.message()});
}

}  // namespace tidegate
