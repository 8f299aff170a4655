#include "offload/memory/backing.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "common/ipc/memfd.h"
#include "common/units.h"

namespace tidegate::offload {
namespace {

/// Between two looks at the machine's memory, so that ranks that allocate together see each other's
/// share. A look costs 0.1 to 0.5 ms, 128 MiB of huge pages 8 ms.
constexpr std::size_t kLookEvery = std::size_t{128} << 20;

Status PopulateStatus(int error, std::size_t bytes) {
  Status status = ErrnoStatus(
      error, "cannot take " + FormatBytes(bytes) + " of memory for the arena (madvise)");
  // EFAULT: what a touch would have answered with SIGBUS, of a pool or an account that is empty.
  if (error != EFAULT && error != ENOMEM) return status;
  return Status(StatusCode::kResourceExhausted,
                status.message() + "; free memory, or raise the limit of this container or job");
}

}  // namespace

Backing::Backing(std::shared_ptr<const NodeSegment> segment, int rank, std::byte* base,
                 RunPieces run, MemoryRoom room, Populate populate)
    : segment_(std::move(segment)),
      file_offset_(segment_->SliceOffset(rank)),
      base_(base),
      run_(std::move(run)),
      populate_(populate),
      room_(std::move(room)) {
  // Not by default, whatever the machine's default is: see step 3. Kernels without huge pages
  // refuse and do the same.
  if (segment_->pages().kind != PageKind::kHugePool)
    madvise(base_, segment_->slice_bytes(), MADV_NOHUGEPAGE);
}

Status Backing::Commit(const std::vector<ByteRange>& missing, int node) {
  const std::size_t bytes = BytesOf(missing);
  if (bytes == 0) return Status();
  Status status = TakeRoom(bytes);
  for (std::size_t i = 0; status.ok() && i < missing.size(); ++i)
    status = Prepare(missing[i], node);
  if (status.ok()) status = Touch(missing);
  for (const ByteRange& range : missing) {
    if (status.ok())
      committed_.Add(range);
    else
      static_cast<void>(Release(range));
  }
  return status;
}

Status Backing::TakeRoom(std::size_t bytes) {
  return segment_->pages().kind == PageKind::kHugePool ? CheckRoom(bytes) : room_.Take(bytes);
}

Status Backing::CheckRoom(std::size_t bytes) const {
  if (segment_->pages().kind != PageKind::kHugePool) return room_.Check(bytes);
  const std::size_t free = FreeHugePoolBytes();
  if (bytes <= free) return Status();
  return Status(StatusCode::kResourceExhausted,
                "cannot take " + FormatBytes(bytes) +
                    " for the arena: the machine's pool of 2 "
                    "MiB pages has " +
                    FormatBytes(free) + " free, " + FormatBytes(bytes - free) +
                    " short; raise vm.nr_hugepages, or make the arena without the pool");
}

/// Steps 2 and 3.
Status Backing::Prepare(ByteRange range, int node) {
  if (node != kAnyNode) {
    const Status status = PreferNode({base_ + range.begin, range.bytes()}, node);
    if (status.code() == StatusCode::kInvalidArgument) return status;
    if (!status.ok()) placement_problem_ = status.message();
  }
  if (segment_->pages().kind != PageKind::kTransparent) return Status();
  const ByteRange huge = WholeUnits(range, kHugePageBytes);
  if (!huge.empty()) madvise(base_ + huge.begin, huge.bytes(), MADV_HUGEPAGE);
  return Status();
}

/// Step 4.
Status Backing::Touch(const std::vector<ByteRange>& ranges) {
  std::vector<ByteRange> pieces;
  for (ByteRange left : ranges) {
    while (!left.empty()) {
      const std::size_t end = std::min(left.end, RoundDown(left.begin, kPieceBytes) + kPieceBytes);
      pieces.push_back({left.begin, end});
      left.begin = end;
    }
  }
  const std::size_t total = BytesOf(ranges);
  const bool looks = total > kLookEvery && segment_->pages().kind != PageKind::kHugePool;
  // Only counts: what a piece wrote is handed on by whatever RunPieces waits with.
  std::atomic<std::size_t> left{total};
  const std::unique_ptr<bool[]> huge = std::make_unique<bool[]>(pieces.size());
  const auto commit = [&](std::size_t i) -> Status {
    const ByteRange& piece = pieces[i];
    if (looks && piece.begin % kLookEvery == 0)
      TIDEGATE_RETURN_IF_ERROR(room_.Check(left.load(std::memory_order_relaxed)));
    TIDEGATE_RETURN_IF_ERROR(TouchPiece(piece, &huge[i]));
    left.fetch_sub(piece.bytes(), std::memory_order_relaxed);
    return Status();
  };
  Status status;
  if (run_ && pieces.size() > 1) {
    status = run_(pieces.size(), commit);
  } else {
    for (std::size_t i = 0; status.ok() && i < pieces.size(); ++i) status = commit(i);
  }
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (huge[i]) huge_.Add(WholeUnits(pieces[i], kHugePageBytes));
  return status;
}

Status Backing::TouchPiece(ByteRange piece, bool* huge) const {
  if (populate_ == Populate::kAutomatic) {
    const ByteRange units = WholeUnits(piece, kHugePageBytes);
    if (segment_->pages().kind == PageKind::kTransparent && !units.empty())
      *huge = BringHugePages(base_ + units.begin, units.bytes());
    const int error = PopulatePages(base_ + piece.begin, piece.bytes());
    if (error == 0) return Status();
    // EINVAL: an old kernel; the others: sandboxes that do not know the advice.
    if (error != EINVAL && error != ENOSYS && error != EPERM)
      return PopulateStatus(error, piece.bytes());
  }
  return CommitPages(segment_->fd(), file_offset_ + piece.begin, piece.bytes());
}

Status Backing::Release(ByteRange range) {
  if (segment_->pages().kind == PageKind::kTransparent) {
    // Or one page of a unit that is empty now would come as a huge one the next time.
    const std::size_t begin = RoundDown(range.begin, kHugePageBytes);
    const std::size_t end = RoundUp(range.end, kHugePageBytes);
    madvise(base_ + begin, end - begin, MADV_NOHUGEPAGE);
    huge_.Remove({begin, end});
  }
  TIDEGATE_RETURN_IF_ERROR(ReleasePages(segment_->fd(), file_offset_ + range.begin, range.bytes()));
  committed_.Remove(range);
  return Status();
}

}  // namespace tidegate::offload
