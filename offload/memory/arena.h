#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/status.h"
#include "offload/memory/arena_stats.h"
#include "offload/memory/backing.h"
#include "offload/memory/block_map.h"
#include "offload/memory/node_segment.h"
#include "offload/memory/registrar.h"

namespace tidegate::offload {

enum class Pinning {
  kOff,
  kWanted,    ///< Where it cannot be, the statistics say why.
  kRequired,  ///< Where it cannot be, the allocation fails before a page is touched.
};

struct ArenaOptions {
  Pinning pinning = Pinning::kWanted;
  /// How; null: mlock, or nothing to do for pages of the huge page pool.
  std::unique_ptr<Registrar> registrar = nullptr;
  /// NUMA node of blocks that name none.
  int node = kAnyNode;
  /// Runs first touches in parallel, on the threads that will own the memory; null: the calling
  /// thread does it. Called under the arena's lock. Less than Backing::kPieceBytes never needs it.
  RunPieces run = nullptr;
  /// For tests: what the machine says it has, and whether pages come as on an old kernel.
  MemoryRoom room = MemoryRoom();
  Backing::Populate populate = Backing::Populate::kAutomatic;
};

struct BlockOptions {
  /// A power of two up to 2 MiB; 0: 64 bytes, or a page from kPageAligned bytes on.
  std::size_t alignment = 0;
  /// NUMA node of the pages that come for this block; kAnyNode: the arena's. Pages that are there
  /// already, as those that it shares with a neighbour, stay where they are.
  int node = kAnyNode;
};

/// Host memory of one rank: its slice of a node's segment, handed out to the byte.
///
/// A block takes what was asked for, rounded up to 64 bytes, and the arena the pages that its
/// blocks touch: no rounding to powers of two, no classes of sizes. Freed blocks merge with free
/// neighbours and keep their pages for the next ones, up to a quarter of what is live and kIdle;
/// once there are more, Free gives all of them back, as Trim() does and an allocation that would
/// fail otherwise. Life cycle: Create, Allocate and Free in any order, Trim where a phase ends;
/// destroying it gives all pages of the slice back, whether blocks are live or not (AllocateShared
/// keeps it alive instead).
///
/// Thread-safe; an allocation that needs pages blocks others meanwhile. Blocks are the caller's to
/// synchronise.
///
/// A process forked from the owner's does not own the arena: the memory is the same, not a copy, so
/// it may read (and write) the blocks that it knows, as a peer may. Allocate, Reserve and Trim are
/// kAborted there, Free does nothing, Stats() tells of nothing, and destroying the arena only
/// unmaps it there. It keeps the memory from going as long as it lives.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  /// Blocks from this size on begin at pages, so that they share none with a neighbour's beginning.
  static constexpr std::size_t kPageAligned = std::size_t{1} << 20;
  /// So much of free pages is not worth a system call: what gives back 10 GiB does so in a few
  /// dozen, and what frees and allocates small blocks in turn does none.
  static constexpr std::size_t kIdle = std::size_t{64} << 20;

  /// Of slice `rank` of `segment`, which this process alone allocates in. kInvalidArgument for a
  /// rank or node that does not exist, kResourceExhausted where the addresses are not to be had.
  static Result<std::shared_ptr<Arena>> Create(std::shared_ptr<const NodeSegment> segment, int rank,
                                               ArenaOptions options = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// A block of `bytes`, whose contents are unspecified; null for 0 bytes. Every page of it is
  /// there: touching it cannot fail. kResourceExhausted, saying what is short, by how much and what
  /// helps: the slice, the machine's or control group's memory, the lock limit if pinning is
  /// required; then nothing has changed, but that free pages may have been given back.
  /// kInvalidArgument for an alignment or node that cannot be.
  Result<std::byte*> Allocate(std::size_t bytes, const BlockOptions& options = {});
  /// The same, freed when the last copy of the result goes, which keeps the arena alive.
  Result<std::shared_ptr<std::byte>> AllocateShared(std::size_t bytes,
                                                    const BlockOptions& options = {});
  /// kInvalidArgument for what Allocate did not return or what was freed before. Null is ok.
  Status Free(const std::byte* block);

  /// Commits, places and pins room for blocks that come to `bytes` (Footprint of each) in one go,
  /// as pieces that are as large as can be; they take no system calls later. Allocates nothing, and
  /// does not count as free pages that Free would give back.
  Status Reserve(std::size_t bytes, int node = kAnyNode);
  /// The most that a block of `bytes` adds to the extent.
  static std::size_t Footprint(std::size_t bytes);

  /// Gives the pages of all free parts, the tail among them, back to the machine and returns how
  /// many bytes that were. Parts that a device holds as one piece with a live block stay.
  Result<std::size_t> Trim();

  ArenaStats Stats() const;

  /// Where `block`, any address of this rank's slice, lies in it, which is how peers find it
  /// (NodeSegment::MapSlice); kInvalidArgument for other addresses.
  Result<std::size_t> OffsetOf(const std::byte* block) const;

  const NodeSegment& segment() const { return *segment_; }
  int rank() const { return rank_; }

 private:
  Arena(std::shared_ptr<const NodeSegment> segment, int rank, SliceMapping mapping,
        ArenaOptions options);

  Status CheckOwner() const;
  // All of these run under mutex_.
  Result<std::size_t> Place(std::size_t bytes, const BlockOptions& options);
  Status Back(ByteRange block, int node);
  Status BackPages(ByteRange pages, int node);
  Status Pin(const std::vector<ByteRange>& fresh);
  Result<std::size_t> GiveBack();
  std::size_t IdleBytes() const;
  std::size_t GrowthUnit() const;
  Status NoPlace(std::size_t bytes) const;

  const std::shared_ptr<const NodeSegment> segment_;
  const int rank_;
  const pid_t owner_;
  const SliceMapping mapping_;
  const Pinning pinning_;
  const int node_;
  const std::unique_ptr<Registrar> registrar_;

  mutable std::mutex mutex_;  // Guards what follows.
  BlockMap blocks_;
  Backing backing_;
  PieceTable pieces_;
  std::string pinning_problem_;
  std::size_t requested_high_water_ = 0;
  std::size_t committed_high_water_ = 0;
  std::size_t torch_pinned_bytes_ = 0;
  std::size_t idle_floor_ = 0;  ///< Free pages that are kept: reserved, or not to be given back.
};

}  // namespace tidegate::offload
