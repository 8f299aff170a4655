#include "offload/memory/arena.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "common/units.h"
#include "offload/memory/torch_rounding.h"

namespace tidegate::offload {
namespace {

/// The arena grows by huge pages from this many of them on, so that what the last one wastes (0.4%)
/// and what lies before blocks that begin at pages (at most as much) come to less than a hundredth.
constexpr std::size_t kHugePagesToGrowBy = 256;

std::size_t AlignmentOf(std::size_t bytes, const BlockOptions& options) {
  if (options.alignment != 0) return std::max(options.alignment, BlockMap::kUnit);
  return bytes >= Arena::kPageAligned ? SmallPageBytes() : BlockMap::kUnit;
}

std::unique_ptr<Registrar> ChosenRegistrar(ArenaOptions& options, PageKind pages) {
  if (options.pinning == Pinning::kOff) return nullptr;
  if (options.registrar != nullptr) return std::move(options.registrar);
  return pages == PageKind::kHugePool ? MakeHugePoolRegistrar() : MakeLockRegistrar();
}

}  // namespace

Result<std::shared_ptr<Arena>> Arena::Create(std::shared_ptr<const NodeSegment> segment, int rank,
                                             ArenaOptions options) {
  if (options.node < kAnyNode || options.node >= kMaxNodes)
    return Status(StatusCode::kInvalidArgument,
                  "there is no NUMA node " + std::to_string(options.node));
  Result<SliceMapping> mapping = segment->MapSlice(rank, Access::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  return std::shared_ptr<Arena>(
      new Arena(std::move(segment), rank, std::move(mapping).value(), std::move(options)));
}

Arena::Arena(std::shared_ptr<const NodeSegment> segment, int rank, SliceMapping mapping,
             ArenaOptions options)
    : segment_(std::move(segment)),
      rank_(rank),
      owner_(getpid()),
      mapping_(std::move(mapping)),
      pinning_(options.pinning),
      node_(options.node),
      registrar_(ChosenRegistrar(options, segment_->pages().kind)),
      blocks_(segment_->slice_bytes()),
      backing_(segment_, rank, mapping_.data(), std::move(options.run), std::move(options.room),
               options.populate),
      pieces_(registrar_.get(), mapping_.data()) {}

Arena::~Arena() {
  if (getpid() != owner_) return;  // Not its memory; the mapping goes, which is its own.
  const ByteRange all{0, segment_->slice_bytes()};
  static_cast<void>(pieces_.Remove(all));
  // Peers may hold the file for long.
  for (const ByteRange& pages : backing_.Within(all))
    if (const Status status = backing_.Release(pages); !status.ok())
      Log(LogLevel::kInfo, status.message());
}

Status Arena::CheckOwner() const {
  if (getpid() == owner_) return Status();
  return Status(StatusCode::kAborted, "an arena cannot be used in a forked process");
}

Result<std::byte*> Arena::Allocate(std::size_t bytes, const BlockOptions& options) {
  TIDEGATE_RETURN_IF_ERROR(CheckOwner());
  if ((options.alignment & (options.alignment - 1)) != 0 || options.alignment > kHugePageBytes)
    return Status(StatusCode::kInvalidArgument,
                  "a block is aligned to a power of two up to 2 MiB, not to " +
                      std::to_string(options.alignment));
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const Result<std::size_t> begin = Place(bytes, options);
  if (!begin.ok()) return begin.status();
  requested_high_water_ = std::max(requested_high_water_, blocks_.requested());
  torch_pinned_bytes_ += TorchPinnedBytes(bytes);
  return mapping_.data() + begin.value();
}

Result<std::shared_ptr<std::byte>> Arena::AllocateShared(std::size_t bytes,
                                                         const BlockOptions& options) {
  const Result<std::byte*> block = Allocate(bytes, options);
  if (!block.ok()) return block.status();
  // A block that the arena does not know ends the program.
  // NOLINTNEXTLINE(bugprone-exception-escape)
  auto release = [arena = shared_from_this()](std::byte* owned) noexcept {
    TIDEGATE_CHECK(arena->Free(owned).ok());
  };
  return std::shared_ptr<std::byte>(block.value(), std::move(release));
}

Status Arena::Free(const std::byte* block) {
  if (block == nullptr || getpid() != owner_) return Status();
  const Result<std::size_t> offset = OffsetOf(block);
  const std::lock_guard lock(mutex_);
  const std::optional<std::size_t> bytes =
      offset.ok() ? blocks_.Release(offset.value()) : std::nullopt;
  if (!bytes)
    return Status(StatusCode::kInvalidArgument,
                  offset.ok() ? "no block of the arena begins at offset " +
                                    std::to_string(offset.value()) + "; was it freed before?"
                              : offset.status().message());
  torch_pinned_bytes_ -= TorchPinnedBytes(*bytes);
  if (IdleBytes() > idle_floor_ + blocks_.requested() / 4 + kIdle) {
    if (const Result<std::size_t> given_back = GiveBack(); !given_back.ok())
      Log(LogLevel::kInfo, given_back.status().message());
    idle_floor_ = IdleBytes();
  }
  return Status();
}

std::size_t Arena::IdleBytes() const {
  return backing_.bytes() - std::min(backing_.bytes(), blocks_.requested());
}

Status Arena::Reserve(std::size_t bytes, int node) {
  TIDEGATE_RETURN_IF_ERROR(CheckOwner());
  if (bytes == 0) return Status();
  const std::lock_guard lock(mutex_);
  const Result<std::size_t> begin = Place(bytes, {.alignment = SmallPageBytes(), .node = node});
  if (!begin.ok()) return begin.status();
  TIDEGATE_CHECK(blocks_.Release(begin.value()).has_value());
  idle_floor_ = IdleBytes();
  return Status();
}

std::size_t Arena::Footprint(std::size_t bytes) {
  const std::size_t gap = bytes >= kPageAligned ? SmallPageBytes() - BlockMap::kUnit : 0;
  return RoundUp(bytes, BlockMap::kUnit) + gap;
}

/// Takes a place with pages behind it.
Result<std::size_t> Arena::Place(std::size_t bytes, const BlockOptions& options) {
  const std::optional<std::size_t> begin = blocks_.Take(bytes, AlignmentOf(bytes, options));
  if (!begin) return NoPlace(bytes);
  const int node = options.node == kAnyNode ? node_ : options.node;
  Status status = Back({*begin, *begin + bytes}, node);
  if (status.code() == StatusCode::kResourceExhausted) {
    // What other free parts hold may be all that is missing.
    const Result<std::size_t> given_back = GiveBack();
    if (given_back.ok() && given_back.value() > 0) status = Back({*begin, *begin + bytes}, node);
  }
  if (status.ok()) return *begin;
  TIDEGATE_CHECK(blocks_.Release(*begin).has_value());
  return status;
}

Status Arena::Back(ByteRange block, int node) {
  const std::size_t page = backing_.page_bytes();
  const ByteRange pages{RoundDown(block.begin, page), RoundUp(block.end, page)};
  if (const ByteRange more{pages.begin, RoundUp(pages.end, GrowthUnit())}; more != pages)
    if (BackPages(more, node).ok()) return Status();
  return BackPages(pages, node);
}

Status Arena::BackPages(ByteRange pages, int node) {
  const std::vector<ByteRange> missing = backing_.Missing(pages);
  const std::size_t bytes = BytesOf(missing);
  if (bytes == 0) return Status();
  if (pinning_ == Pinning::kRequired) TIDEGATE_RETURN_IF_ERROR(registrar_->CheckRoom(bytes));
  TIDEGATE_RETURN_IF_ERROR(backing_.Commit(missing, node));
  committed_high_water_ = std::max(committed_high_water_, backing_.bytes());
  Status pinned = Pin(missing);
  if (pinned.ok()) return Status();
  for (const ByteRange& range : missing) static_cast<void>(backing_.Release(range));
  return pinned;
}

/// A failure only where pinning is required.
Status Arena::Pin(const std::vector<ByteRange>& fresh) {
  Status status = pieces_.Add(fresh);
  if (status.ok() || pinning_ == Pinning::kRequired) return status;
  pinning_problem_ = status.message();
  return Status();
}

Result<std::size_t> Arena::Trim() {
  TIDEGATE_RETURN_IF_ERROR(CheckOwner());
  const std::lock_guard lock(mutex_);
  return GiveBack();
}

Result<std::size_t> Arena::GiveBack() {
  std::size_t bytes = 0;
  for (const auto& [begin, end] : blocks_.free()) {
    const ByteRange pages = WholeUnits({begin, end}, backing_.page_bytes());
    if (backing_.Within(pages).empty()) continue;
    for (const ByteRange& loose : pieces_.Remove(pages)) {
      for (const ByteRange& committed : backing_.Within(loose)) {
        TIDEGATE_RETURN_IF_ERROR(backing_.Release(committed));
        bytes += committed.bytes();
      }
    }
  }
  return bytes;
}

/// What the end of the committed pages is rounded up to.
std::size_t Arena::GrowthUnit() const {
  const bool by_huge_pages = segment_->pages().kind == PageKind::kTransparent &&
                             blocks_.requested() >= kHugePagesToGrowBy * kHugePageBytes;
  return by_huge_pages ? kHugePageBytes : backing_.page_bytes();
}

Status Arena::NoPlace(std::size_t bytes) const {
  // Longer slices would not help where there is no memory to fill them.
  TIDEGATE_RETURN_IF_ERROR(backing_.CheckRoom(bytes));
  const std::size_t longest = blocks_.longest_free();
  return Status(StatusCode::kResourceExhausted,
                "a block of " + FormatBytes(bytes) + " (" + std::to_string(bytes) +
                    " bytes) does not fit into this rank's " +
                    FormatBytes(segment_->slice_bytes()) + " of the arena: " +
                    FormatBytes(blocks_.requested()) + " are in use, the longest free part has " +
                    FormatBytes(longest) + ", " + FormatBytes(bytes - std::min(longest, bytes)) +
                    " short; make the arena with larger slices");
}

ArenaStats Arena::Stats() const {
  ArenaStats stats;
  stats.slice_bytes = segment_->slice_bytes();
  stats.pages = segment_->pages().kind;
  stats.pages_reason = segment_->pages().reason;
  stats.node = node_;
  if (getpid() != owner_) return stats;  // Before the lock, which the parent may have held.
  const std::lock_guard lock(mutex_);
  stats.blocks = blocks_.blocks();
  stats.requested_bytes = blocks_.requested();
  stats.committed_bytes = backing_.bytes();
  stats.huge_bytes = backing_.huge_bytes();
  stats.requested_high_water = requested_high_water_;
  stats.committed_high_water = committed_high_water_;
  stats.extent_bytes = blocks_.end();
  stats.torch_pinned_bytes = torch_pinned_bytes_;
  stats.pinned_bytes = pieces_.bytes();
  stats.pinned_pieces = pieces_.pieces();
  if (stats.pinned_bytes > 0) stats.pinning = registrar_->kind();
  if (pinning_ == Pinning::kOff)
    stats.pinning_problem = "pinning is switched off";
  else if (stats.pinned_bytes < stats.committed_bytes)
    stats.pinning_problem = pinning_problem_;
  stats.placement_problem = backing_.placement_problem();
  return stats;
}

Result<std::size_t> Arena::OffsetOf(const std::byte* block) const {
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  const auto base = reinterpret_cast<std::uintptr_t>(mapping_.data());
  if (address >= base && address - base < mapping_.bytes()) return address - base;
  return Status(StatusCode::kInvalidArgument,
                "an address outside of the arena of rank " + std::to_string(rank_));
}

}  // namespace tidegate::offload
