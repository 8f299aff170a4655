#include "collectives/progress_engine.h"

#include <pthread.h>

#include <algorithm>
#include <limits>

#include "collectives/executor/adaptive_wait.h"

namespace tidegate {

ProgressEngine::ProgressEngine(const Clock& clock)
    : clock_(clock), doorbell_(std::make_shared<Doorbell>()) {}

ProgressEngine::~ProgressEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    WakeLocked();
  }
  if (thread_.joinable()) thread_.join();
}

void ProgressEngine::Notify(const std::shared_ptr<Drivable>& drivable) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.drivable == drivable; });
  if (found == entries_.end()) {
    entries_.push_back({drivable});
  } else {
    found->notified = true;
  }
  if (!thread_.joinable()) thread_ = std::thread(&ProgressEngine::Loop, this);
  // All groups of a process share its doorbell; the first one made brings it.
  const std::shared_ptr<Doorbell> doorbell = drivable->doorbell();
  if (doorbell != nullptr && doorbell != doorbell_) {
    WakeLocked();
    doorbell_ = doorbell;
  }
  WakeLocked();
}

void ProgressEngine::WakeLocked() {
  doorbell_->Ring();
  own_doorbell_.Ring();
}

DriveResult ProgressEngine::DriveAll(Nanoseconds* max_sleep) {
  {
    const std::lock_guard lock(mutex_);
    round_.clear();
    for (Entry& entry : entries_) {
      entry.notified = false;
      round_.push_back(entry.drivable);
    }
  }
  DriveResult all;
  *max_sleep = Nanoseconds::max();
  deferred_.clear();
  for (const std::shared_ptr<Drivable>& drivable : round_) {
    const DriveResult result = drivable->Drive(&finished_, Turn::kUrgent);
    all.Merge(result);
    if (result.pending) *max_sleep = std::min(*max_sleep, drivable->max_sleep());
    if (result.deferred) deferred_.push_back(drivable.get());
    if (result.pending) continue;
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](const Entry& entry) {
      return entry.drivable == drivable && !entry.notified;
    });
  }
  // What is found to be over here leaves the entries in the next round.
  for (Drivable* const drivable : deferred_)
    all.Merge(drivable->Drive(&finished_, Turn::kPrefetched));
  round_.clear();
  reaper_.Add(&finished_);
  return all;
}

void ProgressEngine::Loop() {
  pthread_setname_np(pthread_self(), "tidegate-run");
  AdaptiveWait wait(clock_, LimitsOfProgressThread());
  for (;;) {
    std::shared_ptr<Doorbell> shared;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      shared = doorbell_;
    }
    Nanoseconds max_sleep{};
    const DriveResult driven = DriveAll(&max_sleep);
    if (driven.progressed) {
      wait.Reset();
      continue;
    }
    const bool awaits_peers = driven.awaits_peers;
    // What is held for a time gets no further by polling.
    if ((awaits_peers || !driven.pending) && wait.PollAgain()) continue;
    Doorbell& doorbell = awaits_peers ? *shared : own_doorbell_;
    const std::uint32_t ticket = doorbell.Arm();
    const DriveResult result = DriveAll(&max_sleep);
    bool sleep = !result.progressed && result.awaits_peers == awaits_peers;
    {
      const std::lock_guard lock(mutex_);
      sleep = sleep && !stopping_ && shared == doorbell_ &&
              std::none_of(entries_.begin(), entries_.end(),
                           [](const Entry& entry) { return entry.notified; });
    }
    if (!sleep) {
      doorbell.Disarm();
      continue;
    }
    const TimePoint limit = result.pending ? clock_.Now() + max_sleep : kNoDeadline;
    doorbell.Sleep(ticket, std::min(limit, result.deadline));
    wait.Reset();
  }
}

}  // namespace tidegate
