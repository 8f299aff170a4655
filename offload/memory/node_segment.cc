#include "offload/memory/node_segment.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <string>

#include "common/ipc/memfd.h"
#include "common/machine/machine.h"
#include "common/units.h"
#include "offload/memory/byte_range.h"

namespace tidegate::offload {
namespace {

constexpr std::size_t kMostFileBytes = std::numeric_limits<off_t>::max();

/// What a process has in user space, on all processors that are supported.
constexpr std::size_t kMostAddresses = std::size_t{1} << 47;

/// Addresses that this process may still take, of those that it has in all.
std::size_t FreeAddresses() {
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMostAddresses;
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;  // 0 where it cannot be read.
  const std::size_t used = pages * SmallPageBytes();
  return std::min<std::size_t>(kMostAddresses, limit.rlim_cur - std::min(limit.rlim_cur, used));
}

/// Twice what a rank could have: holes between blocks take addresses, but no memory once trimmed.
std::size_t AutomaticSliceBytes(int ranks, int mappings) {
  std::size_t file_bytes = kMostFileBytes;
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    file_bytes = std::min<std::size_t>(file_bytes, limit.rlim_cur);
  const std::size_t share = RoundDown(file_bytes / static_cast<std::size_t>(ranks), kHugePageBytes);
  // Half of the addresses for all of them: a process needs some for other things, too.
  const std::size_t addresses = FreeAddresses() / 2 / static_cast<std::size_t>(mappings);
  constexpr std::uint64_t kMostMemory = std::uint64_t{1} << 44;  // If the machine tells nothing.
  const auto memory = static_cast<std::size_t>(std::min(TotalMemory(), kMostMemory));
  const std::size_t most = RoundDown(std::min<std::size_t>(2 * memory, addresses), kHugePageBytes);
  return std::max(kHugePageBytes, std::min(share, most));
}

}  // namespace

Result<std::shared_ptr<const NodeSegment>> NodeSegment::Create(const SegmentOptions& options) {
  if (options.ranks < 1)
    return Status(StatusCode::kInvalidArgument,
                  "a segment is for at least 1 rank, not " + std::to_string(options.ranks));
  const auto ranks = static_cast<std::size_t>(options.ranks);
  const std::size_t asked = options.slice_bytes > 0
                                ? options.slice_bytes
                                : AutomaticSliceBytes(options.ranks, options.mappings);
  if (asked > kMostFileBytes / ranks - kHugePageBytes)
    return Status(StatusCode::kResourceExhausted, "no file is as long as " + std::to_string(ranks) +
                                                      " slices of " + FormatBytes(asked) + " (" +
                                                      std::to_string(asked) + " bytes)");
  const std::size_t slice_bytes = RoundUp(asked, kHugePageBytes);
  const std::size_t expected =
      options.expected_bytes > 0 ? std::min(options.expected_bytes, slice_bytes) : slice_bytes;
  Result<ChosenPages> pages = ChoosePages(options.pages, RoundUp(expected, kHugePageBytes) * ranks);
  if (!pages.ok()) return pages.status();
  const auto make = [&](PageKind kind) {
    return CreateMemfd("tidegate-arena", slice_bytes * ranks,
                       kind == PageKind::kHugePool ? MemfdPages::kHugePool : MemfdPages::kOrdinary);
  };
  Result<UniqueFd> fd = make(pages.value().kind);
  if (!fd.ok() && pages.value().kind == PageKind::kHugePool &&
      options.pages == PageChoice::kAutomatic) {
    // A pool that this process may not use, as some sandboxes have it.
    const std::string why = fd.status().message();
    pages = ChoosePages(PageChoice::kNoHugePool, expected);
    if (!pages.ok()) return pages.status();
    pages.value().reason = "the pool of 2 MiB pages cannot be used: " + why;
    fd = make(pages.value().kind);
  }
  if (!fd.ok()) return fd.status();
  return std::shared_ptr<const NodeSegment>(
      new NodeSegment(std::move(fd).value(), options.ranks, slice_bytes, std::move(pages).value()));
}

Result<std::shared_ptr<const NodeSegment>> NodeSegment::Adopt(UniqueFd fd, int ranks,
                                                              std::size_t slice_bytes,
                                                              ChosenPages pages) {
  const Result<std::size_t> size = FileSize(fd.get());
  if (!size.ok()) return size.status();
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  const bool sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
  if (ranks < 1 || slice_bytes == 0 || slice_bytes % kHugePageBytes != 0 || !sealed ||
      size.value() / slice_bytes != static_cast<std::size_t>(ranks) ||
      size.value() % slice_bytes != 0)
    return Status(StatusCode::kMismatch, "a file of " + std::to_string(size.value()) + " bytes" +
                                             (sealed ? "" : ", not sealed,") +
                                             " is no segment of " + std::to_string(ranks) +
                                             " slices of " + std::to_string(slice_bytes));
  return std::shared_ptr<const NodeSegment>(
      new NodeSegment(std::move(fd), ranks, slice_bytes, std::move(pages)));
}

Result<SliceMapping> NodeSegment::MapSlice(int rank, Access access) const {
  if (rank < 0 || rank >= ranks_)
    return Status(
        StatusCode::kInvalidArgument,
        "rank " + std::to_string(rank) + " has no slice in a segment of " + std::to_string(ranks_));
  return SliceMapping::Map(fd_.get(), SliceOffset(rank), slice_bytes_, access);
}

}  // namespace tidegate::offload
