#include "collectives/reaper.h"

#include <pthread.h>

namespace tidegate {

Reaper::~Reaper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Reaper::Add(std::vector<std::shared_ptr<Operation>>* operations) {
  if (operations->empty()) return;
  {
    const std::lock_guard lock(mutex_);
    for (std::shared_ptr<Operation>& operation : *operations)
      operations_.push_back(std::move(operation));
    if (!thread_.joinable()) thread_ = std::thread(&Reaper::Loop, this);
  }
  operations->clear();
  changed_.notify_one();
}

void Reaper::Loop() {
  pthread_setname_np(pthread_self(), "tidegate-reap");
  std::vector<std::shared_ptr<Operation>> batch;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !operations_.empty(); });
    if (operations_.empty()) return;
    batch.swap(operations_);
    lock.unlock();
    for (const std::shared_ptr<Operation>& operation : batch) operation->Reap();
    batch.clear();
    lock.lock();
  }
}

}  // namespace tidegate
