#include "collectives/transport/shm/attachment.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <span>
#include <utility>

#include "collectives/transport/shm/wire.h"
#include "common/ipc/memfd.h"
#include "common/ipc/unix_socket.h"
#include "common/machine/machine.h"
#include "common/mapping.h"

namespace tidegate {
namespace {

/// How long one blocking call may keep this thread from noticing interrupts and deaths.
constexpr Nanoseconds kSlice = std::chrono::milliseconds(50);
/// Spent at most on ranks that have not even announced themselves.
constexpr Nanoseconds kPresenceBudget = std::chrono::milliseconds(100);
constexpr Nanoseconds kPresenceRetryBudget = std::chrono::milliseconds(20);
constexpr Nanoseconds kPresenceTimeout = std::chrono::milliseconds(10);
/// Enough to see what is there; for all ranks of a node, less than the budget.
constexpr Nanoseconds kPresenceGlance = std::chrono::milliseconds(1);
constexpr int kRetryMilliseconds = 20;

constexpr char kAgreementKey[] = "agreement";
constexpr char kCreatorKey[] = "creator";
constexpr char kLastWordKey[] = "last_word";

Nanoseconds TimeLeft(TimePoint deadline) {
  return std::max(deadline - SteadyClock().Now(), Nanoseconds::zero());
}

std::string Seconds(Nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

}  // namespace

std::string DescribeGroup(const std::string& name, int ranks) {
  return "group " + name + " [" + std::to_string(ranks) + " ranks]";
}

std::string PresenceKey(int rank) { return "presence/" + std::to_string(rank); }

std::string NameOf(int rank, const ProcessIdentity& identity) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(identity.pid) + ", host " +
         identity.host + ")";
}

std::string DeathText(const std::string& name, const std::string& when, const std::string& group) {
  return name + " died " + when + " of " + group +
         "; see that process's own output, restart the job from its last checkpoint";
}

std::string CannotJoinText(const std::string& name, const std::string& group,
                           const Status& reason) {
  return name + " cannot join " + group + ": " + reason.message();
}

void ShmTransport::LeaveLastWord(Bootstrap& bootstrap) const {
  if (!failed()) return;
  bool all_here = true;
  for (int peer = 0; peer < ranks(); ++peer) all_here = all_here && IsAttached(peer);
  if (all_here) return;
  const GroupFailure why = failure();
  // Should the store be gone, the others fail all the same, with a less helpful reason.
  (void)bootstrap.Set(kLastWordKey, EncodeLastWord(Status(why.code, why.text))).ok();
}

ShmAttachment::ShmAttachment(const ShmTransport::Options& options)
    : options_(options),
      layout_(options.ranks, options.stage_bytes),
      group_(DescribeGroup(options.group_name, options.ranks)),
      start_(SteadyClock().Now()),
      announced_(static_cast<std::size_t>(options.ranks)) {}

Result<std::unique_ptr<ShmTransport>> ShmAttachment::Run() {
  TIDEGATE_RETURN_IF_ERROR(CheckCancelled());
  Result<std::shared_ptr<NodeService>> service = NodeService::Get();
  if (!service.ok()) return service.status();
  service_ = std::move(service).value();
  Result<ProcessIdentity> self = ThisProcess(options_.node_id);
  if (!self.ok()) return self.status();
  self_ = std::move(self).value();

  const Result<std::int64_t> arrival = options_.bootstrap->Increment(kCreatorKey);
  if (!arrival.ok()) return arrival.status();
  Result<std::unique_ptr<ShmTransport>> transport = arrival.value() == 1 ? Create() : Join();
  if (!transport.ok()) return transport;
  if (Status completed = Complete(*transport.value()); !completed.ok()) {
    // The others have seen this rank in the group: it must not seem to have left in peace.
    transport.value()->Fail({completed.code(), options_.rank, options_.rank,
                             CannotJoinText(NameOf(options_.rank, self_), group_, completed)});
    return completed;
  }
  return transport;
}

Result<std::unique_ptr<ShmTransport>> ShmAttachment::Create() {
  SegmentDescription description{.creator = self_,
                                 .rank = options_.rank,
                                 .address = service_->address(),
                                 .key = {},
                                 .ranks = options_.ranks,
                                 .stage_bytes = layout_.stage_bytes};
  const auto make = [&]() -> Result<std::unique_ptr<ShmTransport>> {
    const Result<SegmentKey> key = RandomKey();
    if (!key.ok()) return key.status();
    description.key = key.value();
    // Limits on files or on address space may leave no room for tensors: those are then ordinary.
    std::unique_ptr<ShmTransport> made;
    if (options_.region_bytes > 0)
      if (auto roomy = MakeSegment({options_.ranks, options_.stage_bytes, options_.region_bytes});
          roomy.ok())
        made = std::move(roomy).value();
    if (made == nullptr) {
      Result<std::unique_ptr<ShmTransport>> bare = MakeSegment(layout_);
      if (!bare.ok()) return bare.status();
      made = std::move(bare).value();
    }
    if (options_.agreement) {
      Result<std::string> agreement = AskForAgreement();
      if (!agreement.ok()) return agreement.status();
      made->agreement_ = std::move(agreement).value();
    }
    return made;
  };
  Result<std::unique_ptr<ShmTransport>> transport = make();
  if (!transport.ok()) {
    // The others need not wait for what will never come. Should even that fail, they time out.
    (void)options_.bootstrap
        ->Set(kSegmentKey, EncodeFailure(options_.rank, self_.host, transport.status()))
        .ok();
    return transport;
  }
  ShmTransport& made = *transport.value();
  made.offer_ = description.key;
  service_->Offer(description.key, made.segment_->fd.get());
  Publish(made);
  // Before the description, so that whoever has that finds this.
  if (options_.agreement)
    TIDEGATE_RETURN_IF_ERROR(options_.bootstrap->Set(kAgreementKey, made.agreement_));
  TIDEGATE_RETURN_IF_ERROR(options_.bootstrap->Set(kSegmentKey, Encode(description)));
  return transport;
}

Result<std::unique_ptr<ShmTransport>> ShmAttachment::MakeSegment(const SegmentLayout& layout) {
  Result<UniqueFd> segment = CreateMemfd("tidegate-segment", layout.total_bytes());
  if (!segment.ok()) return segment.status();
  const int fd = segment.value().get();
  // Every page that ranks touch without a commit of their own.
  TIDEGATE_RETURN_IF_ERROR(CommitPages(fd, 0, layout.PairChannelAt(0, 0)));
  Result<Mapping> mapping = Mapping::Map(fd, layout.total_bytes());
  if (!mapping.ok()) return mapping.status();
  ShmTransport::Initialise(mapping.value().data(), layout);
  return std::unique_ptr<ShmTransport>(new ShmTransport(
      options_, layout, service_, std::move(segment).value(), std::move(mapping).value()));
}

/// The others must not wait for what an exception has kept from being written.
Result<std::string> ShmAttachment::AskForAgreement() const {
  try {
    return options_.agreement();
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, error.what());
  }
}

Result<std::unique_ptr<ShmTransport>> ShmAttachment::Join() {
  const Result<SegmentDescription> description = AwaitDescription();
  if (!description.ok()) return description.status();
  TIDEGATE_RETURN_IF_ERROR(CheckDescription(description.value()));
  Result<UniqueFd> segment = FetchSegment(description.value());
  if (!segment.ok()) return segment.status();
  std::string agreement;
  if (options_.agreement) {
    Result<std::string> text = options_.bootstrap->Get(kAgreementKey, TimeLeft(options_.deadline));
    if (!text.ok()) return text.status();
    agreement = std::move(text).value();
  }
  Result<std::unique_ptr<ShmTransport>> transport = MapSegment(std::move(segment).value());
  if (!transport.ok()) return transport;
  transport.value()->agreement_ = std::move(agreement);
  ShmTransport& made = *transport.value();
  Publish(made);
  return transport;
}

void ShmAttachment::Publish(ShmTransport& transport) const {
  transport.PublishRecord({.pid = self_.pid,
                           .memory_thread = service_->thread_id(),
                           .host = self_.host,
                           .address = service_->address(),
                           .cpus = AffinityMask(),
                           .cpu_quota = static_cast<int>(std::ceil(CpuQuota().value_or(0)))},
                          transport.probe_);
}

Result<SegmentDescription> ShmAttachment::AwaitDescription() {
  for (Nanoseconds budget = kPresenceBudget;; budget = kPresenceRetryBudget) {
    const Result<std::string> text =
        options_.bootstrap->Get(kSegmentKey, SliceEnd() - SteadyClock().Now());
    if (text.ok()) return ParseSegmentDescription(text.value());
    if (text.status().code() != StatusCode::kTimeout) return text.status();
    TIDEGATE_RETURN_IF_ERROR(ReadPresences(budget, nullptr));
    TIDEGATE_RETURN_IF_ERROR(CheckPatience("the rank that came first to make its shared memory"));
  }
}

Status ShmAttachment::CheckDescription(const SegmentDescription& description) const {
  if (description.ranks != options_.ranks || description.stage_bytes != layout_.stage_bytes)
    return Status(StatusCode::kMismatch,
                  "rank " + std::to_string(description.rank) + " made " + group_ + " with " +
                      std::to_string(description.ranks) + " ranks and TIDEGATE_STAGE_BYTES=" +
                      std::to_string(description.stage_bytes) + ", rank " +
                      std::to_string(options_.rank) + " expects " + std::to_string(options_.ranks) +
                      " and " + std::to_string(layout_.stage_bytes) +
                      (description.ranks == options_.ranks
                           ? "; set it equal on all ranks"
                           : "; make the group with the same ranks on all of them"));
  return CheckSameNode(description.creator, description.rank, self_, options_.rank);
}

Result<UniqueFd> ShmAttachment::FetchSegment(const SegmentDescription& description) {
  for (;;) {
    Result<UniqueFd> segment = AskOnce(description, SliceEnd());
    if (segment.ok() || segment.status().code() != StatusCode::kTimeout) return segment;
    TIDEGATE_RETURN_IF_ERROR(
        CheckPatience(NameOf(description.rank, description.creator) +
                      ", which made its shared memory, to hand it out; it may be stopped"));
  }
}

Result<UniqueFd> ShmAttachment::AskOnce(const SegmentDescription& description, TimePoint until) {
  Result<UniqueFd> socket = ConnectAbstract(description.address, until);
  if (!socket.ok()) {
    if (socket.status().code() == StatusCode::kPeerLost) return CreatorGone(description);
    return socket;
  }
  const int fd = socket.value().get();
  const Result<PeerCredentials> creator = GetPeerCredentials(fd);
  if (!creator.ok()) return creator.status();
  if (creator.value().uid != geteuid())
    return Status(StatusCode::kUnsupported,
                  NameOf(description.rank, description.creator) + " runs as user " +
                      std::to_string(creator.value().uid) + ", rank " +
                      std::to_string(options_.rank) + " as user " + std::to_string(geteuid()) +
                      "; all ranks of a machine must run as one user");
  const NodeRequest request = MakeNodeRequest(RequestKind::kSegment, service_->address(),
                                              description.address, description.key);
  // A new socket has room: this cannot time out.
  const Status sent = SendMessage(fd, BytesOf(request), {}, until);
  std::array<std::byte, sizeof(NodeReply)> buffer;
  Result<Message> message = sent.ok() ? ReceiveMessage(fd, buffer, until) : Result<Message>(sent);
  // A creator that is stopped for long is waited for here, on one connection.
  while (sent.ok() && !message.ok() && message.status().code() == StatusCode::kTimeout) {
    TIDEGATE_RETURN_IF_ERROR(
        CheckPatience(NameOf(description.rank, description.creator) +
                      ", which made its shared memory, to hand it out; it may be stopped"));
    message = ReceiveMessage(fd, buffer, SliceEnd());
  }
  const bool closed =
      message.ok() ? message.value().size == 0 : message.status().code() == StatusCode::kPeerLost;
  if (closed) {
    const Status gone = CreatorGone(description);
    if (Process::Watch(description.creator.pid, description.creator.start_time)->ended())
      return gone;
    // It lives: it was short of descriptors, say, or this process was stopped for too long.
    poll(nullptr, 0, kRetryMilliseconds);
    return Status(StatusCode::kTimeout, "closed without a reply");
  }
  if (!message.ok()) return message.status();
  const Result<NodeReply> reply = ParseNodeReply(std::span(buffer).first(message.value().size));
  if (!reply.ok()) return reply.status();
  if (reply.value().outcome == Outcome::kRefused) return CreatorGone(description);
  if (message.value().fds.size() != 1)
    return Status(StatusCode::kInternal, NameOf(description.rank, description.creator) +
                                             " sent no segment of shared memory");
  return std::move(message.value().fds.front());
}

Status ShmAttachment::CreatorGone(const SegmentDescription& description) const {
  // Often it is gone because the group has failed, for a reason that is no fault of its own.
  const Result<std::string> last_word = options_.bootstrap->Get(kLastWordKey, kPresenceTimeout);
  // Its code is not passed on: kTimeout would mean that asking again makes sense.
  if (last_word.ok())
    return Status(StatusCode::kPeerLost, ParseLastWord(last_word.value()).message());
  const Result<std::string> text =
      options_.bootstrap->Get(PresenceKey(description.rank), kPresenceGlance);
  const Result<Presence> presence = text.ok() ? ParsePresence(text.value()) : text.status();
  if (presence.ok() && !presence.value().failure.ok())
    return Status(StatusCode::kPeerLost, presence.value().failure.message());
  const ProcessIdentity& creator = description.creator;
  const std::string name = NameOf(description.rank, creator);
  if (Process::Watch(creator.pid, creator.start_time)->ended())
    return Status(StatusCode::kPeerLost,
                  DeathText(name, "after it made the shared memory", group_));
  return Status(StatusCode::kPeerLost, name + ", which made the shared memory of " + group_ +
                                           ", left the group before rank " +
                                           std::to_string(options_.rank) +
                                           " came to its first operation; destroy a group only "
                                           "when all its ranks are done with it");
}

Result<std::unique_ptr<ShmTransport>> ShmAttachment::MapSegment(UniqueFd segment) {
  const Result<std::size_t> size = FileSize(segment.get());
  if (!size.ok()) return size.status();
  // How much there is for tensors is up to the rank that made it.
  const std::size_t bare = layout_.total_bytes();
  const std::size_t ranks = static_cast<std::size_t>(options_.ranks);
  const SegmentLayout layout(options_.ranks, layout_.stage_bytes,
                             size.value() > bare ? (size.value() - bare) / ranks : 0);
  if (size.value() != layout.total_bytes())
    return Status(StatusCode::kMismatch, "the shared memory of " + group_ + " has " +
                                             std::to_string(size.value()) + " bytes, expected " +
                                             std::to_string(bare) +
                                             " and as many pages for the tensors of each rank"
                                             "; use one tidegate on all ranks");
  Result<Mapping> mapping = Mapping::Map(segment.get(), layout.total_bytes());
  if (!mapping.ok() && layout.region_bytes > 0)
    return Status(mapping.status().code(), mapping.status().message() +
                                               "; raise this rank's limit on address space "
                                               "(ulimit -v), or set TIDEGATE_HEAP_BYTES=0");
  if (!mapping.ok()) return mapping.status();
  TIDEGATE_RETURN_IF_ERROR(ShmTransport::CheckHeader(mapping.value().data(), size.value(), layout));
  return std::unique_ptr<ShmTransport>(
      new ShmTransport(options_, layout, service_, std::move(segment), std::move(mapping).value()));
}

Status ShmAttachment::Complete(ShmTransport& transport) {
  transport.LinkAttached();
  TIDEGATE_RETURN_IF_ERROR(ReadPresences(kPresenceBudget, &transport));
  {
    const std::lock_guard lock(transport.mutex_);
    for (int rank = 0; rank < options_.ranks; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      if (!announced_[index]) continue;
      transport.neighbours_[index].process = announced_[index]->process;
      transport.neighbours_[index].name = NameOf(rank, announced_[index]->identity);
    }
  }
  // What died before the transport listened fails the group all the same.
  transport.OnDeath();
  return Status();
}

Status ShmAttachment::ReadPresences(Nanoseconds budget, ShmTransport* transport) {
  const TimePoint end = SteadyClock().Now() + budget;
  // Ranks that are there first: waiting for others must not cost what these have to say.
  for (const Nanoseconds timeout : {kPresenceGlance, kPresenceTimeout}) {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      const bool again = transport != nullptr && timeout == kPresenceGlance;
      const bool known = announced_[static_cast<std::size_t>(rank)].has_value() && !again;
      if (rank == options_.rank || known || (transport && transport->IsAttached(rank))) continue;
      // A store may be slow, and what is there now is not looked for again.
      const TimePoint until = timeout == kPresenceGlance ? options_.deadline : end;
      const Nanoseconds left = std::min(TimeLeft(until), TimeLeft(options_.deadline));
      if (left == Nanoseconds::zero()) return Status();
      TIDEGATE_RETURN_IF_ERROR(ReadPresence(rank, std::min(left, timeout), transport));
    }
  }
  return Status();
}

Status ShmAttachment::ReadPresence(int rank, Nanoseconds timeout, ShmTransport* transport) {
  const Result<std::string> text = options_.bootstrap->Get(PresenceKey(rank), timeout);
  if (!text.ok()) return text.status().code() == StatusCode::kTimeout ? Status() : text.status();
  const Result<Presence> read = ParsePresence(text.value());
  if (!read.ok()) return read.status();
  const auto& [identity, left, failure] = read.value();
  std::shared_ptr<Process> process;
  if (!failure.ok()) {
    if (transport == nullptr) return failure;
    transport->Fail({failure.code(), rank, rank, failure.message()});
  } else {
    TIDEGATE_RETURN_IF_ERROR(CheckSameNode(identity, rank, self_, options_.rank));
    if (!left)
      process = service_->Watch(identity.pid, identity.start_time);
    else if (transport != nullptr)
      ShmTransport::MarkLeft(*reinterpret_cast<RankRecord*>(transport->segment_->mapping.data() +
                                                            layout_.RankRecordAt(rank)),
                             identity);
  }
  announced_[static_cast<std::size_t>(rank)] = Announced{identity, std::move(process)};
  return Status();
}

Status ShmAttachment::CheckCancelled() const {
  if (options_.cancelled == nullptr || !options_.cancelled->load(std::memory_order_acquire))
    return Status();
  return Status(StatusCode::kAborted, "the group was aborted while it was being joined");
}

Status ShmAttachment::CheckPatience(const std::string& awaited) {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const std::optional<Announced>& announced = announced_[static_cast<std::size_t>(rank)];
    if (!announced || !announced->process || !announced->process->ended()) continue;
    // It may have left in an orderly way since it was looked up, and says so before it ends.
    TIDEGATE_RETURN_IF_ERROR(ReadPresence(rank, kPresenceTimeout, nullptr));
    if (announced->process)
      return Status(StatusCode::kPeerLost, DeathText(NameOf(rank, announced->identity),
                                                     "before its first operation", group_));
  }
  TIDEGATE_RETURN_IF_ERROR(CheckCancelled());
  if (options_.interrupted != nullptr && options_.interrupted())
    return Status(StatusCode::kInterrupted,
                  "interrupted while attaching to " + group_ + ", waiting for " + awaited);
  const TimePoint now = SteadyClock().Now();
  if (now >= options_.deadline)
    return Status(StatusCode::kTimeout, "rank " + std::to_string(options_.rank) +
                                            " timed out after " + Seconds(now - start_) +
                                            " in the first operation of " + group_ +
                                            ", waiting for " + awaited);
  return Status();
}

TimePoint ShmAttachment::SliceEnd() const {
  return std::min(options_.deadline, SteadyClock().Now() + kSlice);
}

}  // namespace tidegate
