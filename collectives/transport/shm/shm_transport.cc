#include "collectives/transport/shm/shm_transport.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "collectives/transport/shm/attachment.h"
#include "collectives/transport/shm/rendezvous.h"
#include "common/ipc/memfd.h"
#include "common/ipc/process_memory.h"
#include "common/log.h"

// ThreadSanitizer does not model fences and GCC says so. Nothing is lost: what the fence orders are
// atomics, and data is published by release and acquire.
#if defined(__SANITIZE_THREAD__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif

namespace tidegate {
namespace {

constexpr std::size_t kPage = 4096;
constexpr Nanoseconds kSleepWhileLinking = std::chrono::milliseconds(1);
/// A rank that attaches links to all others, and a finished link rings: nothing gets lost
/// meanwhile, so this bounds only what no analysis has thought of.
constexpr Nanoseconds kSleepWhileAbsent = std::chrono::milliseconds(10);
constexpr Nanoseconds kSleepWhenLinked = std::chrono::milliseconds(100);

std::string AddressOf(const RankRecord& record) {
  return std::string(record.address, strnlen(record.address, sizeof(record.address)));
}

/// Like no other of this machine.
std::uint64_t UniqueNumber() {
  const auto now = static_cast<std::uint64_t>(SteadyClock().Now().time_since_epoch().count());
  return now ^ static_cast<std::uint64_t>(getpid()) << 44;
}

/// Commits [offset, offset + bytes) of `fd` unless `committed` has it.
Status CommitOnce(int fd, CommittedRanges& committed, std::size_t offset, std::size_t bytes) {
  const std::size_t begin = offset / kPage * kPage;
  const std::size_t end = (offset + bytes + kPage - 1) / kPage * kPage;
  if (committed.Contains(begin, end)) return Status();
  TIDEGATE_RETURN_IF_ERROR(CommitPages(fd, begin, end - begin));
  committed.Add(begin, end);
  return Status();
}

}  // namespace

Result<std::unique_ptr<ShmTransport>> ShmTransport::Attach(const Options& options) {
  return ShmAttachment(options).Run();
}

ShmTransport::ShmTransport(const Options& options, SegmentLayout layout,
                           std::shared_ptr<NodeService> service, UniqueFd segment, Mapping mapping)
    : MemoryTransport(mapping.data(), layout, options.rank),
      group_(DescribeGroup(options.group_name, options.ranks)),
      service_(std::move(service)),
      segment_(std::make_shared<SharedSegment>(std::move(segment), std::move(mapping))),
      heap_(layout.region_bytes == 0
                ? nullptr
                : ResidentHeap::Make(
                      segment_, layout.RegionAt(options.rank), layout.region_bytes, SteadyClock(),
                      [weak = std::weak_ptr(service_)](TimePoint when, std::function<void()> run) {
                        if (const std::shared_ptr<NodeService> alive = weak.lock())
                          alive->RunAt(when, std::move(run));
                      })),
      probe_(UniqueNumber()),
      readable_(static_cast<std::size_t>(options.ranks)),
      doorbells_(static_cast<std::size_t>(options.ranks)),
      neighbours_(static_cast<std::size_t>(options.ranks)) {
  neighbours_[static_cast<std::size_t>(options.rank)].settled = true;
  service_->AddListener(this);
}

ShmTransport::~ShmTransport() {
  // In a forked child the group, the locks and the listeners are the parent's.
  if (service_->IsForked()) return;
  if (!HasLeft(rank())) PublishLeft();
  service_->RemoveListener(this);
  if (offer_) service_->Withdraw(*offer_);
  if (heap_) heap_->Retire();
}

Result<std::shared_ptr<std::byte>> ShmTransport::Allocate(std::size_t bytes) {
  return heap_ ? heap_->Allocate(bytes) : MemoryTransport::Allocate(bytes);
}

Status ShmTransport::CommitStage(int lane, std::size_t offset, std::size_t bytes) {
  return CommitOnce(segment_->fd.get(), committed_[lane], layout().StageAt(lane, rank()) + offset,
                    bytes);
}

Status ShmTransport::CommitPair(int peer, bool sends) {
  constexpr std::size_t kRings = offsetof(PairChannel, pieces);
  const std::lock_guard lock(pairs_mutex_);
  TIDEGATE_RETURN_IF_ERROR(CommitOnce(segment_->fd.get(), committed_pairs_,
                                      layout().PairChannelAt(rank(), peer),
                                      sends ? sizeof(PairChannel) : kRings));
  return CommitOnce(segment_->fd.get(), committed_pairs_, layout().PairChannelAt(peer, rank()),
                    kRings);
}

int ShmTransport::ranks_per_cpu() {
  int known = ranks_per_cpu_.load(std::memory_order_relaxed);
  if (known == 0) {
    for (int peer = 0; peer < ranks(); ++peer)
      if (!IsAttached(peer)) return 2;
    const int cpus = std::max(1, UsableCpusTogether());
    known = (ranks() + cpus - 1) / cpus;
    ranks_per_cpu_.store(known, std::memory_order_relaxed);
  }
  return known;
}

bool ShmTransport::ReadsMemoryOf(int peer) {
  return readable_[static_cast<std::size_t>(peer)].load(std::memory_order_relaxed) != 0;
}

bool ShmTransport::IsReadable(const std::byte* data, std::size_t bytes) {
  return OthersCanRead(data, bytes);
}

Status ShmTransport::ReadMemory(int peer, std::uint64_t address, std::byte* to, std::size_t bytes) {
  const pid_t thread = readable_[static_cast<std::size_t>(peer)].load(std::memory_order_relaxed);
  Status read = ReadProcessMemory(thread, address, to, bytes);
  // The kernel takes the memory of what it kills for want of it before that is gone, if ever.
  if (read.code() == StatusCode::kInvalidArgument && IsEnding(thread))
    read = Status(StatusCode::kPeerLost, "it was killed");
  // Whoever writes down a failure at this moment may be the one that ends: OnDeath sees to that.
  if (read.code() == StatusCode::kPeerLost && !failing() && !HasLeft(peer)) FailForDeathOf(peer);
  return read;
}

/// Containers give a pid another meaning, and rules may forbid reading: only what was read counts.
void ShmTransport::ProbeMemoryOf(int peer) {
  const RankRecord& record = Record(peer);
  std::uint64_t found = 0;
  std::byte bytes[sizeof(found)];
  // Not by its pid, which is of the main thread and good for nothing once that has ended.
  const pid_t thread = record.memory_thread;
  if (!ReadProcessMemory(thread, record.probe_address, bytes, sizeof(bytes)).ok()) return;
  std::memcpy(&found, bytes, sizeof(found));
  if (found != record.probe_value) return;
  readable_[static_cast<std::size_t>(peer)].store(thread, std::memory_order_relaxed);
  PublishReads(peer);
}

void ShmTransport::Wake() {
  if (!all_settled_.load(std::memory_order_acquire)) {
    // Between the caller's word and the look at who is there, as in Doorbell::Ring: a rank that is
    // not there yet will see the word, since it looks after it attached.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    LinkAttached();
  }
  for (const std::atomic<Doorbell*>& slot : doorbells_)
    if (Doorbell* const doorbell = slot.load(std::memory_order_acquire)) doorbell->Ring();
  if (failed()) service_->doorbell().Ring();
}

Nanoseconds ShmTransport::max_sleep() {
  return all_settled_.load(std::memory_order_acquire) ? kSleepWhenLinked : LinkAttached();
}

Nanoseconds ShmTransport::LinkAttached() {
  bool one_died = false;
  const Nanoseconds sleep = LinkAttached(&one_died);
  if (one_died) OnDeath();
  return sleep;
}

Nanoseconds ShmTransport::LinkAttached(bool* one_died) {
  const std::lock_guard lock(mutex_);
  bool absent = false;
  bool linking = false;
  for (int peer = 0; peer < ranks(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    Neighbour& neighbour = neighbours_[index];
    if (neighbour.settled) continue;
    if (!IsAttached(peer)) {
      absent = true;
      *one_died = WatchAnnounced(peer, neighbour) || *one_died;
      continue;
    }
    if (!neighbour.probed) {
      neighbour.probed = true;
      ProbeMemoryOf(peer);
    }
    if (HasLeft(peer)) {
      neighbour.settled = true;
    } else if (const std::string address = AddressOf(Record(peer));
               address == service_->address()) {
      // Two ranks in one process, as tests have them, share its doorbell.
      doorbells_[index].store(&service_->doorbell(), std::memory_order_release);
      neighbour.settled = true;
    } else {
      if (!neighbour.peer) neighbour.peer = service_->Link(address);
      Doorbell* const doorbell = neighbour.peer->doorbell();
      if (doorbell != nullptr) doorbells_[index].store(doorbell, std::memory_order_release);
      neighbour.settled = doorbell != nullptr || neighbour.peer->dead();
      linking = linking || !neighbour.settled;
    }
  }
  if (linking) return kSleepWhileLinking;
  if (absent) return kSleepWhileAbsent;
  all_settled_.store(true, std::memory_order_release);
  return kSleepWhenLinked;
}

bool ShmTransport::WatchAnnounced(int peer, Neighbour& neighbour) {
  const RankRecord& record = Record(peer);
  if (neighbour.process || neighbour.reported ||
      record.state.load(std::memory_order_acquire) != RankRecord::kAnnounced)
    return false;
  neighbour.process = service_->Watch(record.announced_pid, record.announced_start_time);
  ProcessIdentity identity;
  identity.pid = record.announced_pid;
  identity.host = Record(rank()).host;  // It has checked that it is on this node.
  neighbour.name = NameOf(peer, identity);
  return neighbour.process->ended();
}

void ShmTransport::OnDeath() {
  // A rank that left does not speak for the group any more; those still in it look for themselves.
  if (HasLeft(rank())) return;
  while (const std::optional<int> culprit = FindDead()) {
    if (failed()) {
      // By a rank that may not be linked to this one yet, so that its ring did not get here.
      service_->doorbell().Ring();
      continue;
    }
    FailForDeathOf(*culprit);
  }
}

void ShmTransport::FailForDeathOf(int culprit) {
  const std::string text = DescribeDeath(culprit);
  bool logged;
  {
    const std::lock_guard lock(mutex_);
    logged = std::exchange(neighbours_[static_cast<std::size_t>(culprit)].logged, true);
  }
  if (!logged) Log(LogLevel::kWarn, text);
  Fail({StatusCode::kPeerLost, rank(), culprit, text});
}

std::optional<int> ShmTransport::FindDead() {
  const std::lock_guard lock(mutex_);
  for (int peer = 0; peer < ranks(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    Neighbour& neighbour = neighbours_[index];
    const bool dead = (neighbour.peer && neighbour.peer->dead()) ||
                      (neighbour.process && neighbour.process->ended());
    if (!dead || neighbour.reported) continue;
    neighbour.reported = true;
    neighbour.settled = true;
    // It may have died asleep, and would then count as a sleeper for ever.
    doorbells_[index].store(nullptr, std::memory_order_release);
    if (!HasLeft(peer)) return peer;
  }
  return std::nullopt;
}

std::string ShmTransport::DescribeDeath(int culprit) {
  std::optional<Fingerprint> latest;
  for (int lane = 0; lane < kLanes; ++lane) {
    Fingerprint fingerprint;
    if (LatestArrival(lane, culprit, &fingerprint) &&
        (!latest || latest->sequence < fingerprint.sequence))
      latest = fingerprint;
  }
  std::string name;
  if (IsAttached(culprit)) {
    name = DescribePeer(culprit);
  } else {
    const std::lock_guard lock(mutex_);
    name = neighbours_[static_cast<std::size_t>(culprit)].name;
  }
  // Sends and receives leave no trace that another rank could read.
  const std::string when = latest                ? "in " + Describe(*latest)
                           : IsAttached(culprit) ? "before its first collective"
                                                 : "before its first operation";
  return DeathText(name, when, group_);
}

}  // namespace tidegate
