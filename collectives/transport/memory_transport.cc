#include "collectives/transport/memory_transport.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/check.h"

namespace tidegate {
namespace {

/// Copies `text` with its terminating zero, cut to fit.
template <std::size_t kSize>
void CopyText(char (&destination)[kSize], const std::string& text) {
  const std::size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(destination, text.data(), length);
  destination[length] = '\0';
}

/// A peer wrote this text: it may lack its end.
template <std::size_t kSize>
std::string ReadText(const char (&source)[kSize]) {
  return std::string(source, strnlen(source, kSize));
}

/// Calls `visit` with the number of each word of a fingerprint, without a loop. Words go between
/// the shared line and the fingerprint itself: through an array in between every one is moved
/// twice.
template <std::size_t... kWords, typename Visit>
void ForEachWord(std::index_sequence<kWords...> /*words*/, const Visit& visit) {
  (visit(kWords), ...);
}
using FingerprintWords = std::make_index_sequence<sizeof(Fingerprint) / sizeof(std::uint64_t)>;

void StoreFingerprint(SharedFingerprint& shared, const Fingerprint& fingerprint) {
  // After the arrival before: see LatestArrival.
  std::atomic_thread_fence(std::memory_order_release);
  const auto* const bytes = reinterpret_cast<const std::byte*>(&fingerprint);
  ForEachWord(FingerprintWords(), [&](std::size_t i) {
    std::uint64_t word;
    std::memcpy(&word, bytes + i * sizeof(word), sizeof(word));
    shared.words[i].store(word, std::memory_order_relaxed);
  });
}

Fingerprint LoadFingerprint(const SharedFingerprint& shared) {
  Fingerprint fingerprint;
  auto* const bytes = reinterpret_cast<std::byte*>(&fingerprint);
  ForEachWord(FingerprintWords(), [&](std::size_t i) {
    const std::uint64_t word = shared.words[i].load(std::memory_order_relaxed);
    std::memcpy(bytes + i * sizeof(word), &word, sizeof(word));
  });
  return fingerprint;
}

}  // namespace

void MemoryTransport::Initialise(std::byte* base, const SegmentLayout& layout) {
  auto& header = *reinterpret_cast<SegmentHeader*>(base);
  header.magic = kSegmentMagic;
  header.version = kSegmentVersion;
  header.ranks = static_cast<std::uint32_t>(layout.ranks);
  header.stage_bytes = layout.stage_bytes;
  header.region_bytes = layout.region_bytes;
}

Status MemoryTransport::CheckHeader(const std::byte* base, std::size_t size,
                                    const SegmentLayout& layout) {
  if (size < layout.total_bytes())
    return Status(StatusCode::kMismatch, "the group's shared segment has " + std::to_string(size) +
                                             " bytes, expected " +
                                             std::to_string(layout.total_bytes()));
  const auto& header = *reinterpret_cast<const SegmentHeader*>(base);
  if (header.magic != kSegmentMagic || header.version != kSegmentVersion)
    return Status(StatusCode::kMismatch,
                  "the group's shared segment has layout version " +
                      std::to_string(header.version) + ", this build speaks " +
                      std::to_string(kSegmentVersion) + "; use one tidegate on all ranks");
  if (header.ranks != static_cast<std::uint32_t>(layout.ranks) ||
      header.stage_bytes != layout.stage_bytes)
    return Status(StatusCode::kMismatch,
                  "the group's shared segment is for " + std::to_string(header.ranks) +
                      " ranks with TIDEGATE_STAGE_BYTES=" + std::to_string(header.stage_bytes) +
                      ", this rank expects " + std::to_string(layout.ranks) + " and " +
                      std::to_string(layout.stage_bytes) + "; set both equal on all ranks");
  if (header.region_bytes != layout.region_bytes)
    return Status(StatusCode::kMismatch,
                  "the group's shared segment says that each rank has " +
                      std::to_string(header.region_bytes) + " bytes for tensors, and has " +
                      std::to_string(layout.region_bytes) + "; use one tidegate on all ranks");
  return Status();
}

LaneWords& MemoryTransport::Words(int lane, int rank) const {
  return *reinterpret_cast<LaneWords*>(base_ + layout_.LaneWordsAt(lane, rank));
}

RankRecord& MemoryTransport::MutableRecord(int rank) const {
  return *reinterpret_cast<RankRecord*>(base_ + layout_.RankRecordAt(rank));
}

const RankRecord& MemoryTransport::Record(int rank) const { return MutableRecord(rank); }

PairChannel& MemoryTransport::Pair(int from, int to) {
  return *reinterpret_cast<PairChannel*>(base_ + layout_.PairChannelAt(from, to));
}

void MemoryTransport::Arrive(int lane, std::uint64_t index, const Fingerprint& fingerprint,
                             std::span<const std::uint64_t> splits) {
  SharedArrival& arrival = Words(lane, rank_).arrivals[index % 2];
  StoreFingerprint(arrival.fingerprint, fingerprint);
  if (!splits.empty()) {
    TIDEGATE_CHECK(splits.size() == 2 * static_cast<std::size_t>(layout_.ranks));
    std::memcpy(base_ + layout_.SplitsAt(lane, rank_, index), splits.data(), splits.size_bytes());
  }
  arrival.index.store(index, std::memory_order_release);
}

bool MemoryTransport::HasArrived(int lane, int peer, std::uint64_t index) {
  return Words(lane, peer).arrivals[index % 2].index.load(std::memory_order_acquire) >= index;
}

Fingerprint MemoryTransport::ArrivalOf(int lane, int peer, std::uint64_t index) {
  return LoadFingerprint(Words(lane, peer).arrivals[index % 2].fingerprint);
}

std::uint64_t MemoryTransport::SplitOf(int lane, int rank, std::uint64_t index, int position) {
  std::uint64_t bytes;
  std::memcpy(&bytes,
              base_ + layout_.SplitsAt(lane, rank, index) +
                  static_cast<std::size_t>(position) * sizeof(bytes),
              sizeof(bytes));
  return bytes;
}

bool MemoryTransport::LatestArrival(int lane, int peer, Fingerprint* fingerprint) {
  const SharedArrival(&arrivals)[2] = Words(lane, peer).arrivals;
  const std::uint64_t even = arrivals[0].index.load(std::memory_order_acquire);
  const std::uint64_t odd = arrivals[1].index.load(std::memory_order_acquire);
  const std::uint64_t index = std::max(even, odd);
  if (index == 0) return false;
  *fingerprint = ArrivalOf(lane, peer, index);
  // The entry is rewritten at index + 2, before its index is: what was read is whole unless the
  // peer has come to index + 1.
  std::atomic_thread_fence(std::memory_order_acquire);
  return arrivals[(index + 1) % 2].index.load(std::memory_order_relaxed) < index;
}

void MemoryTransport::Signal(int lane, Mark mark, std::uint64_t word) {
  Words(lane, rank_).Of(mark).store(word, std::memory_order_release);
}

bool MemoryTransport::HasReached(int lane, int peer, Mark mark, std::uint64_t word) {
  return Words(lane, peer).Of(mark).load(std::memory_order_acquire) >= word;
}

bool MemoryTransport::PeersReadMemory() {
  return Record(rank_).readers.load(std::memory_order_acquire) + 1 >=
         static_cast<std::uint32_t>(layout_.ranks);
}

bool MemoryTransport::ReadsMemoryOf(int) { return false; }

bool MemoryTransport::IsReadable(const std::byte*, std::size_t) { return false; }

Status MemoryTransport::ReadMemory(int peer, std::uint64_t, std::byte*, std::size_t) {
  return Status(StatusCode::kUnsupported, "the memory of " + DescribePeer(peer) + " is not read");
}

void MemoryTransport::PublishReads(int peer) {
  MutableRecord(peer).readers.fetch_add(1, std::memory_order_release);
}

Result<std::shared_ptr<std::byte>> MemoryTransport::Allocate(std::size_t) {
  return std::shared_ptr<std::byte>();
}

void MemoryTransport::PublishWait(int lane, const PendingWait& wait) {
  SharedWait& shared = Words(lane, rank_).wait;
  shared.index.store(wait.index, std::memory_order_relaxed);
  shared.word.store(wait.word, std::memory_order_relaxed);
  shared.mark.store(wait.mark, std::memory_order_relaxed);
  shared.peer.store(wait.peer, std::memory_order_relaxed);
}

PendingWait MemoryTransport::WaitOf(int lane, int peer) {
  const SharedWait& shared = Words(lane, peer).wait;
  const PendingWait wait{.index = shared.index.load(std::memory_order_relaxed),
                         .word = shared.word.load(std::memory_order_relaxed),
                         .mark = shared.mark.load(std::memory_order_relaxed),
                         .peer = shared.peer.load(std::memory_order_relaxed)};
  // A peer wrote it: the mark must at least be one.
  return wait.mark >= 0 && wait.mark <= kDoneMark ? wait : PendingWait{};
}

void MemoryTransport::PublishRecord(const RankDescription& self, const std::uint64_t& probe) {
  RankRecord& record = MutableRecord(rank_);
  record.pid = self.pid;
  record.memory_thread = self.memory_thread;
  record.probe_address = reinterpret_cast<std::uintptr_t>(&probe);
  record.probe_value = probe;
  std::copy(self.cpus.begin(), self.cpus.end(), record.cpus);
  record.cpu_quota = self.cpu_quota;
  CopyText(record.host, self.host);
  CopyText(record.address, self.address);
  record.state.store(RankRecord::kAttached, std::memory_order_release);
}

int MemoryTransport::UsableCpusTogether() const {
  int cpus = 0;
  for (std::size_t word = 0; word < kCpuWords; ++word) {
    std::uint64_t of_any = 0;
    for (int rank = 0; rank < layout_.ranks; ++rank) of_any |= Record(rank).cpus[word];
    cpus += std::popcount(of_any);
  }
  // Mostly all are of one cgroup, and share its quota.
  int quota = 0;
  for (int rank = 0; rank < layout_.ranks; ++rank) {
    if (Record(rank).cpu_quota == 0) return cpus;
    quota = std::max(quota, Record(rank).cpu_quota);
  }
  return std::min(cpus, quota);
}

void MemoryTransport::PublishLeft() {
  MutableRecord(rank_).state.store(RankRecord::kLeft, std::memory_order_release);
  Wake();
}

bool MemoryTransport::IsAttached(int rank) const {
  return RankRecord::HasAttached(Record(rank).state.load(std::memory_order_acquire));
}

bool MemoryTransport::HasLeft(int peer) {
  return Record(peer).state.load(std::memory_order_acquire) == RankRecord::kLeft;
}

std::string MemoryTransport::DescribePeer(int peer) {
  std::string text = "rank " + std::to_string(peer);
  if (!IsAttached(peer)) return text + " (not yet in the group)";
  const RankRecord& record = Record(peer);
  return text + " (pid " + std::to_string(record.pid) + ", host " + ReadText(record.host) + ")";
}

void MemoryTransport::Fail(const GroupFailure& failure) {
  SegmentHeader& head = header();
  const auto claim_of = [](int rank) {
    return SegmentHeader::kFirstClaim + static_cast<std::uint32_t>(rank);
  };
  const auto claim = [&](std::uint32_t from) {
    return head.failure_state.compare_exchange_strong(from, claim_of(rank_),
                                                      std::memory_order_acq_rel);
  };
  // A rank that died while it wrote the record would keep it from everybody: whoever reports that
  // death takes over.
  const bool of_another =
      failure.code == StatusCode::kPeerLost && failure.culprit >= 0 && failure.culprit != rank_;
  if (claim(SegmentHeader::kHealthy) || (of_another && claim(claim_of(failure.culprit)))) {
    head.failure_code = static_cast<std::int32_t>(failure.code);
    head.failure_reporter = failure.reporter;
    head.failure_culprit = failure.culprit;
    CopyText(head.failure_text, failure.text);
    head.failure_state.store(SegmentHeader::kFailed, std::memory_order_release);
  }
  Wake();
}

bool MemoryTransport::failed() const {
  return header().failure_state.load(std::memory_order_acquire) == SegmentHeader::kFailed;
}

bool MemoryTransport::failing() const {
  return header().failure_state.load(std::memory_order_acquire) != SegmentHeader::kHealthy;
}

GroupFailure MemoryTransport::failure() const {
  const SegmentHeader& head = header();
  const auto code = static_cast<StatusCode>(head.failure_code);
  // A peer wrote it, and what has failed must not seem to be well.
  const bool known = code > StatusCode::kOk && code <= StatusCode::kInternal;
  return {known ? code : StatusCode::kInternal, head.failure_reporter, head.failure_culprit,
          ReadText(head.failure_text)};
}

}  // namespace tidegate
