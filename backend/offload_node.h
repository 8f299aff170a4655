#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "backend/offload_parameter.h"
#include "common/clock.h"
#include "offload/memory/arena.h"
#include "offload/memory/node_segment.h"
#include "offload/memory/segment_sharing.h"
#include "offload/memory/slice_mapping.h"

namespace tidegate {

/// The segment that ranks of a node share: this rank allocates in its slice and reads those of all.
/// Goes with the last tensor in it; the memory itself goes with the last process that holds it.
/// Thread-safe. Everything throws as ThrowOffloadStatus.
class OffloadNode : public std::enable_shared_from_this<OffloadNode> {
 public:
  static std::shared_ptr<OffloadNode> Make(std::shared_ptr<const offload::NodeSegment> segment,
                                           int rank);

  int rank() const { return arena_->rank(); }
  int ranks() const { return arena_->segment().ranks(); }
  offload::Arena& arena() { return *arena_; }
  ZerosFunction Zeros();

  /// Where a tensor that Zeros() has made lies in this rank's slice.
  std::size_t OffsetOf(const at::Tensor& tensor) const;
  /// What lies in the slice of `rank`. ValueError beyond its end.
  const std::byte* At(int rank, std::size_t offset, std::size_t bytes) const;

  /// Those of this process, in the order in which they were made.
  static std::vector<std::shared_ptr<OffloadNode>> Alive();

 private:
  OffloadNode(std::shared_ptr<offload::Arena> arena, std::vector<offload::SliceMapping> slices)
      : arena_(std::move(arena)), slices_(std::move(slices)) {}

  const std::shared_ptr<offload::Arena> arena_;
  const std::vector<offload::SliceMapping> slices_;  ///< By rank, for reading.
};

/// Rank 0's end of making an OffloadNode; the others call JoinOffloadNode with its address.
class OffloadNodeHost {
 public:
  explicit OffloadNodeHost(int ranks);
  const std::string& address() const { return host_.address(); }
  /// Blocks until all have joined, at most for `timeout`; `stop` is asked meanwhile and may throw.
  std::shared_ptr<OffloadNode> Serve(Nanoseconds timeout, const offload::StopCheck& stop);

 private:
  const std::shared_ptr<const offload::NodeSegment> segment_;
  offload::SegmentHost host_;
};

std::shared_ptr<OffloadNode> JoinOffloadNode(const std::string& address, int rank, int ranks,
                                             Nanoseconds timeout, const offload::StopCheck& stop);

/// Name of this process's node: ranks of other names cannot share memory with it.
std::string OffloadNodeIdentity();

}  // namespace tidegate
