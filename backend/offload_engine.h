#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "common/status.h"
#include "offload/memory/arena.h"
#include "offload/memory/node_segment.h"
#include "offload/threads/thread_pool.h"

namespace tidegate {

/// The exception of a failed status of the offload engine: ValueError, NotImplementedError,
/// MemoryError for kResourceExhausted, RuntimeError for the rest. REQUIRES: !status.ok().
[[noreturn]] void ThrowOffloadStatus(const Status& status);

/// Throws it unless it is ok.
inline void CheckOffload(const Status& status) {
  if (!status.ok()) ThrowOffloadStatus(status);
}

/// A zeroed CPU tensor in `arena`, which it keeps alive. Throws as ThrowOffloadStatus.
at::Tensor ZerosIn(offload::Arena& arena, at::IntArrayRef sizes, at::IntArrayRef strides,
                   at::ScalarType dtype);

/// The threads and the memory that all offloaded optimizers of a process share. Thread-safe.
class OffloadEngine {
 public:
  /// Made at the first call in a process; a forked child has one of its own. Throws as
  /// ThrowOffloadStatus, and then tries again at the next call. Never destroyed: tensors in its
  /// memory may outlive everything.
  static OffloadEngine& OfThisProcess();
  /// Null where no call in this process has made it yet.
  static OffloadEngine* IfMade();

  offload::ThreadPool& pool() { return *pool_; }
  offload::Arena& arena() { return *arena_; }

  /// An arena in slice `rank` of `segment`, whose pages this engine's threads touch first.
  Result<std::shared_ptr<offload::Arena>> MakeArena(
      std::shared_ptr<const offload::NodeSegment> segment, int rank);

 private:
  OffloadEngine(std::unique_ptr<offload::ThreadPool> pool, std::shared_ptr<offload::Arena> arena)
      : pool_(std::move(pool)), arena_(std::move(arena)) {}
  static Result<OffloadEngine*> Make();
  static Result<std::shared_ptr<offload::Arena>> MakeArena(
      offload::ThreadPool& pool, std::shared_ptr<const offload::NodeSegment> segment, int rank);

  const std::unique_ptr<offload::ThreadPool> pool_;
  const std::shared_ptr<offload::Arena> arena_;
};

}  // namespace tidegate
