#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "collectives/transport/segment_layout.h"
#include "collectives/transport/transport.h"

namespace tidegate {

/// What a rank says of its process when it attaches.
struct RankDescription {
  int pid = 0;
  int memory_thread = 0;  ///< As RankRecord's.
  std::string host;
  std::string address = {};  ///< Of its service.
  std::array<std::uint64_t, kCpuWords> cpus = {};
  int cpu_quota = 0;
};

/// A Transport over memory in which every rank's stage and words can be addressed directly: all but
/// where the memory comes from, how pages are committed and how sleepers are woken. Base of the
/// shared-memory and the loopback transport.
class MemoryTransport : public Transport {
 public:
  int rank() const final { return rank_; }
  int ranks() const final { return layout_.ranks; }
  std::size_t stage_bytes() const final { return layout_.stage_bytes; }
  std::byte* StageOf(int lane, int owner) final { return base_ + layout_.StageAt(lane, owner); }

  std::size_t region_bytes() const final { return layout_.region_bytes; }
  std::byte* RegionOf(int owner) final { return base_ + layout_.RegionAt(owner); }

  int ranks_per_cpu() override { return 1; }
  bool PeersReadMemory() final;
  // Unless overridden, no memory of processes is read.
  bool ReadsMemoryOf(int peer) override;
  bool IsReadable(const std::byte* data, std::size_t bytes) override;
  Status ReadMemory(int peer, std::uint64_t address, std::byte* to, std::size_t bytes) override;

  void Arrive(int lane, std::uint64_t index, const Fingerprint& fingerprint,
              std::span<const std::uint64_t> splits) final;
  bool HasArrived(int lane, int peer, std::uint64_t index) override;
  Fingerprint ArrivalOf(int lane, int peer, std::uint64_t index) final;
  std::uint64_t SplitOf(int lane, int rank, std::uint64_t index, int position) final;
  bool LatestArrival(int lane, int peer, Fingerprint* fingerprint) final;
  void Signal(int lane, Mark mark, std::uint64_t word) final;
  bool HasReached(int lane, int peer, Mark mark, std::uint64_t word) override;
  void PublishWait(int lane, const PendingWait& wait) final;
  PendingWait WaitOf(int lane, int peer) final;
  std::string DescribePeer(int peer) final;
  bool HasLeft(int peer) final;
  void Fail(const GroupFailure& failure) final;
  bool failed() const final;
  bool failing() const final;
  GroupFailure failure() const final;

  /// Channel of messages from `from` to `to`, one of which is this rank.
  PairChannel& Pair(int from, int to);
  /// Makes both channels between this rank and `peer` usable, all but the pieces of the outgoing
  /// one unless this rank `sends`. Must precede their first use; idempotent and cheap when
  /// repeated.
  virtual Status CommitPair(int peer, bool sends) = 0;
  /// Memory of `bytes` in this rank's region, given back when the last copy of the result goes;
  /// that may be after the transport. Null: this transport has no region. kResourceExhausted: it is
  /// full, or the machine's memory is. Any thread.
  virtual Result<std::shared_ptr<std::byte>> Allocate(std::size_t bytes);

  /// Marks this rank as attached; its record is visible to peers afterwards. `probe`, of which
  /// peers look whether they can read it in this process, must live as long as the transport.
  void PublishRecord(const RankDescription& self, const std::uint64_t& probe);
  /// Says that this rank can read the memory of `peer`. To be called once a peer.
  void PublishReads(int peer);
  /// Marks this rank as gone in an orderly way and wakes the others. Idempotent.
  void PublishLeft();
  const RankRecord& Record(int rank) const;
  bool IsAttached(int rank) const;

 protected:
  /// `base` must hold layout.total_bytes() and outlive the transport.
  MemoryTransport(std::byte* base, SegmentLayout layout, int rank)
      : base_(base), layout_(layout), rank_(rank) {}

  const SegmentLayout& layout() const { return layout_; }
  /// Processors that all ranks together may use. REQUIRES: all have attached.
  int UsableCpusTogether() const;
  /// Writes the constants of a new, zero-filled segment.
  static void Initialise(std::byte* base, const SegmentLayout& layout);
  /// kMismatch or kInternal with the difference, if the segment is not one of `layout`'s kind.
  static Status CheckHeader(const std::byte* base, std::size_t size, const SegmentLayout& layout);

 private:
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }
  LaneWords& Words(int lane, int rank) const;
  RankRecord& MutableRecord(int rank) const;

  std::byte* const base_;
  const SegmentLayout layout_;
  const int rank_;
};

}  // namespace tidegate
