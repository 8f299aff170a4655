#pragma once

#include <cstddef>
#include <span>

#include "common/status.h"
#include "offload/threads/thread_pool.h"

namespace tidegate::offload {

/// Bytes that go from one place to another; the two do not overlap.
struct CopyJob {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

/// Does all of `jobs` on all threads of `pool`, as one run of bytes that is cut evenly: neither
/// many small jobs nor a single large one leaves a thread without work. Blocks. The Status is the
/// pool's (a worker was lost): some jobs are then done and others not.
Status CopyInParallel(ThreadPool& pool, std::span<const CopyJob> jobs);

}  // namespace tidegate::offload
