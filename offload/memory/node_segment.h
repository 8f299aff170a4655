#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "common/status.h"
#include "common/unique_fd.h"
#include "offload/memory/page_kind.h"
#include "offload/memory/slice_mapping.h"

namespace tidegate::offload {

struct SegmentOptions {
  int ranks = 1;  ///< Of the node that share the segment; at least 1.
  /// Addresses of each rank's slice: the most that its blocks can come to. Rounded up to 2 MiB; 0:
  /// twice what the machine has (or what the limits of file size and addresses allow). Costs
  /// nothing until used.
  std::size_t slice_bytes = 0;
  /// Of slices, how many each process maps: those of peers, too, and its own perhaps twice.
  int mappings = 1;
  /// What each rank is going to use, from which the kind of pages follows; 0: not known, so that
  /// the pool of huge pages is used only if it holds the whole slices.
  std::size_t expected_bytes = 0;
  PageChoice pages = PageChoice::kAutomatic;
};

/// The memory that the ranks of a node share: one sparse nameless file, cut into one slice a rank.
/// Nothing of it has pages at first. It has no name and goes with the last process that holds it
/// or a mapping of it, however that ends. Immutable, so any thread may use it.
class NodeSegment {
 public:
  static Result<std::shared_ptr<const NodeSegment>> Create(const SegmentOptions& options);

  /// The segment that another process made: `fd` with the layout and kind that it told.
  /// kMismatch unless the file is as long as that and sealed against shrinking.
  static Result<std::shared_ptr<const NodeSegment>> Adopt(UniqueFd fd, int ranks,
                                                          std::size_t slice_bytes,
                                                          ChosenPages pages);

  /// Maps the slice of `rank`; kInvalidArgument for one that does not exist.
  Result<SliceMapping> MapSlice(int rank, Access access) const;
  /// Where the slice of `rank` begins in the file.
  std::size_t SliceOffset(int rank) const { return static_cast<std::size_t>(rank) * slice_bytes_; }

  int fd() const { return fd_.get(); }
  int ranks() const { return ranks_; }
  std::size_t slice_bytes() const { return slice_bytes_; }
  const ChosenPages& pages() const { return pages_; }
  /// Bytes that come and go at once: 2 MiB for pages of the pool, else a small page.
  std::size_t page_bytes() const {
    return pages_.kind == PageKind::kHugePool ? kHugePageBytes : SmallPageBytes();
  }

 private:
  NodeSegment(UniqueFd fd, int ranks, std::size_t slice_bytes, ChosenPages pages)
      : fd_(std::move(fd)), ranks_(ranks), slice_bytes_(slice_bytes), pages_(std::move(pages)) {}

  const UniqueFd fd_;
  const int ranks_;
  const std::size_t slice_bytes_;
  const ChosenPages pages_;
};

}  // namespace tidegate::offload
