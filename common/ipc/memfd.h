#pragma once

#include <cstddef>
#include <string_view>

#include "common/status.h"
#include "common/unique_fd.h"

namespace tidegate {

/// What a file's pages come from.
enum class MemfdPages {
  kOrdinary,
  /// The machine's pool of 2 MiB pages (vm.nr_hugepages), which are never swapped; `size` is a
  /// multiple of that. Where the pool is short, a mapping made without MAP_NORESERVE fails.
  kHugePool,
};

/// A nameless shared-memory file of `size` bytes (memfd, close-on-exec, sealed against shrinking,
/// so that a peer cannot make a later access fault). No page is allocated yet. `label` shows up in
/// /proc/PID/maps only.
Result<UniqueFd> CreateMemfd(std::string_view label, std::size_t size,
                             MemfdPages pages = MemfdPages::kOrdinary);

/// Size in bytes of the file behind `fd`.
Result<std::size_t> FileSize(int fd);

/// Allocates the pages of [offset, offset + size) now, so that lack of memory is a Status
/// (kResourceExhausted, naming the bytes asked for) and never a SIGBUS or a killed process later.
/// Idempotent. Pages allocated before a failure stay until the file goes.
Status CommitPages(int fd, std::size_t offset, std::size_t size);

/// Gives the pages of [offset, offset + size), both multiples of the page size, back to the
/// machine, under all mappings: what is read there afterwards is zero.
Status ReleasePages(int fd, std::size_t offset, std::size_t size);

}  // namespace tidegate
