#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/function_ref.h"
#include "common/status.h"
#include "offload/memory/byte_range.h"
#include "offload/memory/memory_room.h"
#include "offload/memory/node_segment.h"
#include "offload/memory/numa_binding.h"

namespace tidegate::offload {

/// Runs `commit(piece)` once for each piece in [0, pieces), on whichever threads, and returns when
/// all are done: the failure of one of them, or ok. It is called under the arena's lock, so neither
/// it nor anything that its threads do first may call into the arena.
using RunPieces =
    std::function<Status(std::size_t pieces, FunctionRef<Status(std::size_t piece)> commit)>;

/// The pages behind a slice: which are there, how they come and how they go.
///
/// They come in this order, since a page stays where its first touch put it:
///   1. the room for all of them is checked, so that lack of memory is a Status;
///   2. the range is bound to its NUMA node (mbind sets the policy of the *file's* range, so it
///      holds for whoever touches it), if it has one;
///   3. huge pages are advised for the whole 2 MiB units of it and forbidden elsewhere, so that no
///      byte more is taken than was asked for;
///   4. it is populated in pieces, by the threads of RunPieces: whole units as huge pages where
///      there are such (BringHugePages), all else by MADV_POPULATE_WRITE, which allocates, zeroes
///      and maps in one pass and reports what a plain touch would answer with SIGBUS. Without a
///      node in 2. the pages land on the nodes of those threads.
/// Kernels before 5.14 have no such call: there fallocate allocates (by the same policies, in the
/// same pieces, but small pages only), and zeroing is left to the first use.
///
/// Externally locked.
class Backing {
 public:
  /// Pieces of step 4, which begin at multiples of this.
  static constexpr std::size_t kPieceBytes = std::size_t{16} << 20;
  enum class Populate { kAutomatic, kNever };  ///< kNever: as on an old kernel, for tests.

  /// Of slice `rank`, mapped at `base`; `run` may be null (the calling thread does it all).
  Backing(std::shared_ptr<const NodeSegment> segment, int rank, std::byte* base, RunPieces run,
          MemoryRoom room = MemoryRoom(), Populate populate = Populate::kAutomatic);

  /// The parts of `range` (whole pages) that have no pages.
  std::vector<ByteRange> Missing(ByteRange range) const { return committed_.Missing(range); }
  /// The parts that have.
  std::vector<ByteRange> Within(ByteRange range) const { return committed_.Within(range); }

  /// Whether `bytes` of memory could be had now, of pages of this kind; kResourceExhausted as of
  /// Commit.
  Status CheckRoom(std::size_t bytes) const;

  /// Gives pages to `missing`, which Missing returned: all or none. kResourceExhausted for lack of
  /// memory, kInvalidArgument for a node that does not exist. A policy that cannot be set is
  /// noted (placement_problem) and no failure.
  Status Commit(const std::vector<ByteRange>& missing, int node);

  /// Gives the pages of `range` (whole pages) back to the machine, under all mappings.
  Status Release(ByteRange range);

  std::size_t bytes() const { return committed_.bytes(); }
  /// Of these, bytes that came as huge pages.
  std::size_t huge_bytes() const {
    return segment_->pages().kind == PageKind::kHugePool ? bytes() : huge_.bytes();
  }
  std::size_t page_bytes() const { return segment_->page_bytes(); }
  /// Why memory could not be bound to its node; empty: it was, or was not to be.
  const std::string& placement_problem() const { return placement_problem_; }

 private:
  Status TakeRoom(std::size_t bytes);
  Status Prepare(ByteRange range, int node);
  Status Touch(const std::vector<ByteRange>& ranges);
  Status TouchPiece(ByteRange piece, bool* huge) const;

  const std::shared_ptr<const NodeSegment> segment_;
  const std::size_t file_offset_;
  std::byte* const base_;
  const RunPieces run_;
  const Populate populate_;
  MemoryRoom room_;
  RangeSet committed_;
  RangeSet huge_;  ///< Units that came as transparent huge pages.
  std::string placement_problem_;
};

}  // namespace tidegate::offload
