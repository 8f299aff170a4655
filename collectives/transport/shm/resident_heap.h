#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "collectives/transport/shm/shared_segment.h"
#include "common/clock.h"
#include "common/status.h"

namespace tidegate {

/// Hands out the memory of one rank's region of a group's segment, for tensors that peers read
/// where they lie. Sizes are rounded up to pages and no further; first fit by address, neighbours
/// merge. Pages are allocated when they are handed out, so that lack of memory is a Status and no
/// SIGBUS.
///
/// What is freed keeps its pages for a while, because new ones must be zeroed and mapped, which
/// costs as much as a collective of their size, and a training step asks for the same sizes again
/// and again. They go back to the machine
///   - kKeepFor after they were freed, unless they were handed out again meanwhile,
///   - at once where freed pages would come to more than the high-water mark of what was in use,
///   - before an allocation fails for lack of memory, and
///   - from Retire() on at once.
///
/// Lives as long as the last allocation. In a forked process, whose memory it is not, nothing is
/// handed out or given back. Thread-safe; an allocation blocks others while its pages are zeroed.
class ResidentHeap : public std::enable_shared_from_this<ResidentHeap> {
 public:
  static constexpr Nanoseconds kKeepFor = std::chrono::seconds(2);
  /// Runs a function at a time, on some thread; it may be dropped if the process ends.
  using RunAt = std::function<void(TimePoint when, std::function<void()> run)>;

  /// [begin, begin + bytes) of `segment`, both multiples of the page size. `run_at` may be null:
  /// then pages are given back at the next allocation or release only.
  static std::shared_ptr<ResidentHeap> Make(std::shared_ptr<const SharedSegment> segment,
                                            std::size_t begin, std::size_t bytes,
                                            const Clock& clock, RunAt run_at);

  /// kResourceExhausted where no part of the region is long enough, or the machine has no memory.
  /// The last copy of the result frees it; `bytes` above 0.
  Result<std::shared_ptr<std::byte>> Allocate(std::size_t bytes);

  /// The group is over. Idempotent.
  void Retire();

  struct Usage {
    std::size_t live = 0;  ///< Bytes handed out, in whole pages.
    std::size_t kept = 0;  ///< Bytes of pages that wait to be handed out again.
    std::size_t high_water = 0;
  };
  Usage usage() const;

 private:
  struct Kept {
    std::size_t end;
    TimePoint since;
  };
  using Ranges = std::map<std::size_t, std::size_t>;  ///< From begin to end, of the region.

  ResidentHeap(std::shared_ptr<const SharedSegment> segment, std::size_t begin, std::size_t bytes,
               const Clock& clock, RunAt run_at);

  void Free(std::size_t begin);
  void GiveBackLater();

  // All of these run under mutex_.
  Status Commit(std::size_t begin, std::size_t end);
  void Take(std::size_t begin, std::size_t end);
  void GiveBack(TimePoint kept_until);
  void GiveBackOne(std::map<std::size_t, Kept>::iterator kept);
  std::map<std::size_t, Kept>::iterator Oldest();
  std::size_t LongestFree() const;

  const std::shared_ptr<const SharedSegment> segment_;
  const std::size_t begin_;
  const std::size_t bytes_;
  const Clock& clock_;
  const RunAt run_at_;
  const pid_t owner_;

  mutable std::mutex mutex_;  // Guards what follows.
  Ranges live_;
  Ranges free_;
  std::map<std::size_t, Kept> kept_;  ///< Parts of free_ with pages, by where they begin.
  Usage usage_;
  bool later_ = false;  ///< GiveBackLater is going to run.
  bool retired_ = false;
};

}  // namespace tidegate
