#include "collectives/transport/shm/resident_heap.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/ipc/memfd.h"
#include "common/log.h"
#include "common/units.h"

namespace tidegate {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

std::shared_ptr<ResidentHeap> ResidentHeap::Make(std::shared_ptr<const SharedSegment> segment,
                                                 std::size_t begin, std::size_t bytes,
                                                 const Clock& clock, RunAt run_at) {
  TIDEGATE_CHECK(begin % kPage == 0 && bytes % kPage == 0);
  return std::shared_ptr<ResidentHeap>(
      new ResidentHeap(std::move(segment), begin, bytes, clock, std::move(run_at)));
}

ResidentHeap::ResidentHeap(std::shared_ptr<const SharedSegment> segment, std::size_t begin,
                           std::size_t bytes, const Clock& clock, RunAt run_at)
    : segment_(std::move(segment)),
      begin_(begin),
      bytes_(bytes),
      clock_(clock),
      run_at_(std::move(run_at)),
      owner_(getpid()) {
  if (bytes_ > 0) free_[0] = bytes_;
}

Result<std::shared_ptr<std::byte>> ResidentHeap::Allocate(std::size_t bytes) {
  TIDEGATE_CHECK(bytes > 0);
  if (getpid() != owner_)
    return Status(StatusCode::kAborted,
                  "shared memory of a group cannot be had in a forked process");
  const std::lock_guard lock(mutex_);
  GiveBack(clock_.Now() - kKeepFor);
  const auto fits = [&](const auto& range) { return bytes <= range.second - range.first; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end())
    return Status(StatusCode::kResourceExhausted,
                  FormatBytes(bytes) + " do not fit into the " + FormatBytes(bytes_) +
                      " that each rank has for shared tensors: " + FormatBytes(usage_.live) +
                      " are in use, the longest free part has " + FormatBytes(LongestFree()));
  const std::size_t begin = found->first;
  const std::size_t end = begin + (bytes + kPage - 1) / kPage * kPage;  // Parts are whole pages.
  if (Status committed = Commit(begin, end); !committed.ok()) {
    GiveBack(TimePoint::max());
    TIDEGATE_RETURN_IF_ERROR(Commit(begin, end));
  }
  Take(begin, end);
  return std::shared_ptr<std::byte>(
      segment_->mapping.data() + begin_ + begin,
      [heap = shared_from_this(), begin](std::byte*) noexcept { heap->Free(begin); });
}

/// Allocates the pages of [begin, end), a part of free_, that are not kept; none of them if there
/// is no memory for all.
Status ResidentHeap::Commit(std::size_t begin, std::size_t end) {
  auto kept = kept_.lower_bound(begin);
  if (kept != kept_.begin() && std::prev(kept)->second.end > begin) --kept;
  Ranges fresh;
  std::size_t position = begin;
  for (; kept != kept_.end() && kept->first < end; ++kept) {
    if (position < kept->first) fresh[position] = kept->first;
    position = kept->second.end;
  }
  if (position < end) fresh[position] = end;
  for (const auto& [from, to] : fresh) {
    const Status status = CommitPages(segment_->fd.get(), begin_ + from, to - from);
    if (status.ok()) continue;
    for (const auto& [done, done_end] : fresh)
      static_cast<void>(ReleasePages(segment_->fd.get(), begin_ + done, done_end - done));
    return status;
  }
  return Status();
}

/// Moves [begin, end), the beginning of a free part, from free_ and kept_ to live_.
void ResidentHeap::Take(std::size_t begin, std::size_t end) {
  const auto part = free_.find(begin);
  const std::size_t part_end = part->second;
  free_.erase(part);
  if (end < part_end) free_[end] = part_end;
  live_[begin] = end;
  usage_.live += end - begin;
  usage_.high_water = std::max(usage_.high_water, usage_.live);
  // No kept range reaches across the beginning of a free part.
  for (auto kept = kept_.lower_bound(begin); kept != kept_.end() && kept->first < end;) {
    const Kept was = kept->second;
    usage_.kept -= std::min(was.end, end) - kept->first;
    kept = kept_.erase(kept);
    if (was.end > end) kept_[end] = was;
  }
}

void ResidentHeap::Free(std::size_t begin) {
  if (getpid() != owner_) return;  // Before the lock, which the parent may have held.
  bool arm = false;
  const TimePoint now = clock_.Now();
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(begin);
    TIDEGATE_CHECK(found != live_.end());
    const std::size_t end = found->second;
    live_.erase(found);
    usage_.live -= end - begin;
    usage_.kept += end - begin;
    kept_[begin] = {end, now};
    auto part = free_.insert({begin, end}).first;
    if (const auto next = std::next(part); next != free_.end() && next->first == end) {
      part->second = next->second;
      free_.erase(next);
    }
    if (part != free_.begin() && std::prev(part)->second == begin) {
      std::prev(part)->second = part->second;
      free_.erase(part);
    }
    GiveBack(retired_ ? TimePoint::max() : now - kKeepFor);
    while (usage_.kept > usage_.high_water) GiveBackOne(Oldest());
    arm = !kept_.empty() && !later_ && run_at_ != nullptr;
    later_ = later_ || arm;
  }
  if (arm)
    run_at_(now + kKeepFor, [weak = weak_from_this()] {
      if (const std::shared_ptr<ResidentHeap> self = weak.lock()) self->GiveBackLater();
    });
}

void ResidentHeap::GiveBackLater() {
  if (getpid() != owner_) return;
  TimePoint next{};
  {
    const std::lock_guard lock(mutex_);
    GiveBack(clock_.Now() - kKeepFor);
    later_ = !kept_.empty();
    if (!later_) return;
    next = Oldest()->second.since + kKeepFor;
  }
  run_at_(next, [weak = weak_from_this()] {
    if (const std::shared_ptr<ResidentHeap> self = weak.lock()) self->GiveBackLater();
  });
}

void ResidentHeap::Retire() {
  if (getpid() != owner_) return;
  const std::lock_guard lock(mutex_);
  retired_ = true;
  GiveBack(TimePoint::max());
}

/// Gives back what was freed at `kept_until` or before.
void ResidentHeap::GiveBack(TimePoint kept_until) {
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    const auto next = std::next(kept);
    if (kept->second.since <= kept_until) GiveBackOne(kept);
    kept = next;
  }
}

void ResidentHeap::GiveBackOne(std::map<std::size_t, Kept>::iterator kept) {
  const std::size_t bytes = kept->second.end - kept->first;
  const Status released = ReleasePages(segment_->fd.get(), begin_ + kept->first, bytes);
  if (!released.ok()) Log(LogLevel::kInfo, released.message());
  usage_.kept -= bytes;
  kept_.erase(kept);
}

std::map<std::size_t, ResidentHeap::Kept>::iterator ResidentHeap::Oldest() {
  return std::min_element(kept_.begin(), kept_.end(), [](const auto& a, const auto& b) {
    return a.second.since < b.second.since;
  });
}

std::size_t ResidentHeap::LongestFree() const {
  std::size_t longest = 0;
  for (const auto& [begin, end] : free_) longest = std::max(longest, end - begin);
  return longest;
}

ResidentHeap::Usage ResidentHeap::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

}  // namespace tidegate
