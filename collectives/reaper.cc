#include "collectives/reaper.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/check.h"

namespace tidegate {

Reaper::~Reaper() {
  std::vector<std::thread> threads;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      threads.swap(threads_);  // A thread may start another one until the queue is empty.
      threads.insert(threads.end(), std::make_move_iterator(retired_.begin()),
                     std::make_move_iterator(retired_.end()));
      retired_.clear();
    }
    if (threads.empty()) return;
    changed_.notify_all();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
}

void Reaper::Add(std::vector<std::shared_ptr<Operation>>* operations) {
  if (operations->empty()) return;
  {
    const std::lock_guard lock(mutex_);
    for (std::shared_ptr<Operation>& operation : *operations)
      operations_.push_back(std::move(operation));
    EnsureStandby();
  }
  operations->clear();
  changed_.notify_one();
}

void Reaper::EnsureStandby() {
  if (idle_ > 0 || threads_.size() >= kMostThreads) return;
  threads_.emplace_back(&Reaper::Loop, this);
  ++idle_;  // From now on, so that the next call does not start another one.
}

void Reaper::Retire() {
  const auto self = std::find_if(threads_.begin(), threads_.end(), [](const std::thread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  });
  TIDEGATE_CHECK(self != threads_.end());
  retired_.push_back(std::move(*self));
  threads_.erase(self);
  changed_.notify_one();
}

void Reaper::JoinRetired() {
  // They have let go of the mutex for the last time, so this does not block for long.
  for (std::thread& thread : retired_) thread.join();
  retired_.clear();
}

void Reaper::Loop() {
  pthread_setname_np(pthread_self(), "tidegate-reap");
  std::unique_lock lock(mutex_);
  for (;;) {  // Counted as idle here.
    changed_.wait(lock, [this] { return stopping_ || !operations_.empty() || !retired_.empty(); });
    JoinRetired();
    const Clock::time_point turn = last_start_ + kPatience;
    if (!operations_.empty() && running_ > 0 && Clock::now() < turn) {
      changed_.wait_until(lock, turn);
      continue;
    }
    if (operations_.empty()) {
      if (stopping_) break;
      continue;
    }
    std::shared_ptr<Operation> operation = std::move(operations_.front());
    operations_.pop_front();
    --idle_;
    ++running_;
    last_start_ = Clock::now();
    if (!operations_.empty()) {
      EnsureStandby();
      changed_.notify_one();  // An idle thread sleeps without a deadline until it is told.
    }
    lock.unlock();
    operation->Reap();
    operation.reset();
    lock.lock();
    --running_;
    ++idle_;
    if (idle_ > kMostIdleThreads && !stopping_) {
      Retire();
      break;
    }
  }
  --idle_;
}

}  // namespace tidegate
