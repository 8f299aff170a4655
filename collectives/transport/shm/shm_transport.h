#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/transport/bootstrap.h"
#include "collectives/transport/memory_transport.h"
#include "collectives/transport/shm/committed_ranges.h"
#include "collectives/transport/shm/node_service.h"
#include "collectives/transport/shm/peer.h"
#include "collectives/transport/shm/process.h"
#include "collectives/transport/shm/resident_heap.h"
#include "collectives/transport/shm/shared_segment.h"
#include "collectives/transport/shm/wire.h"
#include "common/clock.h"
#include "common/ipc/doorbell.h"
#include "common/mapping.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace tidegate {

/// Transport between the processes of one node: one nameless memory segment a group, made by the
/// rank that comes first and handed out by its node service.
///
/// Life: AnnouncePresence when the group is made, Attach at this rank's first operation (which
/// waits for no other rank but the one that made the segment), destruction when the rank leaves.
/// From Attach on, the death of any rank's process that has not left fails the group within
/// milliseconds.
///
/// Thread-safe as Transport says; Wake, max_sleep and Fail from any thread.
class ShmTransport final : public MemoryTransport, private DeathListener {
 public:
  struct Options {
    std::string group_name;
    int rank = 0;
    int ranks = 1;
    std::size_t stage_bytes = 0;
    /// For tensors of each rank, as the rank that makes the segment has it; 0: none. Costs address
    /// space alone until tensors lie there.
    std::size_t region_bytes = 0;
    Bootstrap* bootstrap = nullptr;  ///< Used during Attach only.
    TimePoint deadline = kNoDeadline;
    bool (*interrupted)() = nullptr;  ///< May be null; polled while blocking: true gives up.
    /// May be null; polled likewise: true gives up because the group was aborted meanwhile.
    const std::atomic<bool>* cancelled = nullptr;
    /// TIDEGATE_NODE_ID: ranks of other names are on other nodes. Empty is a name, too.
    std::string node_id = {};
    /// Asked by the rank that makes the segment alone, for what all ranks are to go by; fails the
    /// group if it fails. May be empty.
    std::function<Result<std::string>()> agreement = nullptr;
  };

  /// Blocks on the bootstrap and on the rank that makes the segment. kTimeout at the deadline,
  /// kInterrupted, kAborted when cancelled, kPeerLost when a rank dies meanwhile, kUnsupported when
  /// ranks do not share a node, kMismatch when they disagree on the segment, kResourceExhausted
  /// without memory for it.
  static Result<std::unique_ptr<ShmTransport>> Attach(const Options& options);

  /// Tells the peers which process `rank` is before it attaches, so that they notice its death:
  /// those that attach later by the bootstrap, those that have attached by the segment, which it
  /// visits. No thread, no memory, two calls of the bootstrap; at most 50 ms where the segment's
  /// maker does not answer.
  static Status AnnouncePresence(Bootstrap& bootstrap, int rank, const std::string& node_id = {});

  /// Tells the ranks that are in the group, or still come, that this rank will not come: `reason`
  /// ok: it left in an orderly way, as if it had attached and left; otherwise the group fails for
  /// all with that reason. For a rank that is not attached; needs no service. Best effort, bounded
  /// to 50 ms and two calls of the bootstrap.
  static void Decline(const Options& options, const Status& reason);

  /// Where the group has failed and ranks are still to come, tells those why: by then nobody may be
  /// left who could hand out the segment with its failure record.
  void LeaveLastWord(Bootstrap& bootstrap) const;

  /// Tells the peers that this rank has left, unless it did; nothing in a forked process. Blocks
  /// while a death is being reported.
  ~ShmTransport() override;

  Status CommitStage(int lane, std::size_t offset, std::size_t bytes) override;
  /// Both directions between this rank and `to`: what it writes there as sender and as receiver.
  Status CommitPair(int peer, bool sends) override;
  Result<std::shared_ptr<std::byte>> Allocate(std::size_t bytes) override;
  int ranks_per_cpu() override;
  bool ReadsMemoryOf(int peer) override;
  bool IsReadable(const std::byte* data, std::size_t bytes) override;
  Status ReadMemory(int peer, std::uint64_t address, std::byte* to, std::size_t bytes) override;
  /// Rings every linked peer's doorbell and, once the group has failed, this process's own.
  void Wake() override;

  /// What Options::agreement said on the rank that made the segment; empty if it had none.
  const std::string& agreement() const { return agreement_; }

  /// Longest sleep of a waiter, a net under what no doorbell announces: short while ranks are
  /// missing.
  Nanoseconds max_sleep();
  /// Where this process's waiters sleep.
  Doorbell& doorbell() { return service_->doorbell(); }

 private:
  friend class ShmAttachment;

  /// What is known of a rank other than this one. Guarded by mutex_.
  struct Neighbour {
    std::shared_ptr<Process> process;  ///< From its presence, until it is linked.
    std::shared_ptr<Peer> peer;        ///< Once attached.
    std::string name;                  ///< "rank 2 (pid 4711, host a)", from its presence.
    bool settled = false;              ///< Linked, left or dead: nothing to look for.
    bool reported = false;             ///< Its death, or that it does not matter.
    bool logged = false;               ///< Its death.
    bool probed = false;               ///< Whether its memory can be read was tried.
  };

  ShmTransport(const Options& options, SegmentLayout layout, std::shared_ptr<NodeService> service,
               UniqueFd segment, Mapping mapping);

  /// Marks a rank that has not attached as gone in an orderly way.
  static void MarkLeft(RankRecord& record, const ProcessIdentity& identity);

  void OnDeath() override;
  /// Links ranks that have attached since; returns how long a waiter may sleep now.
  Nanoseconds LinkAttached();
  Nanoseconds LinkAttached(bool* one_died);
  /// Watches the process of a rank that says in its record that it is there. True: it has died.
  /// REQUIRES: mutex_ is held.
  bool WatchAnnounced(int peer, Neighbour& neighbour);
  void ProbeMemoryOf(int peer);
  /// A dead rank that has not left and was not reported; nullopt: none.
  std::optional<int> FindDead();
  std::string DescribeDeath(int rank);
  void FailForDeathOf(int culprit);

  const std::string group_;  // "group 0 [4 ranks]", for messages.
  const std::shared_ptr<NodeService> service_;
  const std::shared_ptr<const SharedSegment> segment_;  // Tensors may outlive the group.
  const std::shared_ptr<ResidentHeap> heap_;            // Null: this segment has no regions.
  std::string agreement_;
  std::optional<SegmentKey> offer_;
  const std::uint64_t probe_;
  std::vector<std::atomic<pid_t>>
      readable_;  ///< By rank: by whose id its memory can be read; or 0.
  CommittedRanges committed_[kLanes];
  std::mutex pairs_mutex_;
  CommittedRanges committed_pairs_;  // Guarded by pairs_mutex_.

  /// Null: not linked, or dead. Written under mutex_ (release), read without; what they point to
  /// lives as long as neighbours_.
  std::vector<std::atomic<Doorbell*>> doorbells_;
  std::atomic<bool> all_settled_{false};  // Release after the doorbells; pairs with Wake.
  std::atomic<int> ranks_per_cpu_{0};     ///< 0: not known yet.
  std::mutex mutex_;
  std::vector<Neighbour> neighbours_;
};

}  // namespace tidegate
