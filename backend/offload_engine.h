#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "common/status.h"
#include "offload/memory/arena.h"
#include "offload/threads/thread_pool.h"

namespace tidegate {

/// The exception of a failed status of the offload engine: ValueError, NotImplementedError,
/// MemoryError for kResourceExhausted, RuntimeError for the rest. REQUIRES: !status.ok().
[[noreturn]] void ThrowOffloadStatus(const Status& status);

/// The threads and the memory that all offloaded optimizers of a process share. Thread-safe.
class OffloadEngine {
 public:
  /// Made at the first call in a process; a forked child has one of its own. Throws as
  /// ThrowOffloadStatus, and then tries again at the next call. Never destroyed: tensors in its
  /// memory may outlive everything.
  static OffloadEngine& OfThisProcess();

  offload::ThreadPool& pool() { return *pool_; }

  /// A zeroed CPU tensor in the arena, first touched by the pool. Throws as ThrowOffloadStatus.
  at::Tensor Zeros(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);

  /// For tidegate.offload.stats().
  std::string StatsJson() const;

 private:
  OffloadEngine(std::unique_ptr<offload::ThreadPool> pool, std::shared_ptr<offload::Arena> arena)
      : pool_(std::move(pool)), arena_(std::move(arena)) {}
  static Result<OffloadEngine*> Make();

  const std::unique_ptr<offload::ThreadPool> pool_;
  const std::shared_ptr<offload::Arena> arena_;
};

/// StatsJson() of the process's engine; "{}" if there is none yet.
std::string OffloadStatsJson();

}  // namespace tidegate
