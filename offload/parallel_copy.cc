#include "offload/parallel_copy.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace tidegate::offload {
namespace {

/// Bytes of an item: as in a step, large beside what taking one costs.
constexpr std::size_t kItemBytes = std::size_t{256} * 1024;

}  // namespace

Status CopyInParallel(ThreadPool& pool, std::span<const CopyJob> jobs) {
  std::vector<std::size_t> ends;  // Of each job in the run of all bytes.
  ends.reserve(jobs.size());
  std::size_t total = 0;
  for (const CopyJob& job : jobs) ends.push_back(total += job.bytes);
  const auto copy_item = [&](std::size_t item, int) {
    std::size_t at = item * kItemBytes;
    const std::size_t end = std::min(at + kItemBytes, total);
    auto job = static_cast<std::size_t>(std::ranges::upper_bound(ends, at) - ends.begin());
    for (; at < end; ++job) {
      const std::size_t begin = ends[job] - jobs[job].bytes;
      const std::size_t bytes = std::min(end, ends[job]) - at;
      if (bytes > 0) std::memcpy(jobs[job].to + (at - begin), jobs[job].from + (at - begin), bytes);
      at += bytes;
    }
    return Status();
  };
  return pool.Run((total + kItemBytes - 1) / kItemBytes, copy_item);
}

}  // namespace tidegate::offload
