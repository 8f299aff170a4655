#include "collectives/reaper.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/log.h"

namespace tidegate {
namespace {

/// Which callback this thread runs.
struct CallbackOfThread {
  Reaper* reaper = nullptr;
  std::uint64_t number = 0;
};

thread_local CallbackOfThread t_here;

std::atomic<std::uint64_t> g_last_number{0};
std::atomic<void (*)()> g_lock_probe{nullptr};

/// Whether a thread waits for something other than a processor: see "state" in proc(5).
bool Sleeps(long thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(") ");
  return name_end != std::string::npos && text[name_end + 2] != 'R';
}

void WarnOnce(std::atomic<bool>* warned, const char* text) {
  if (!warned->exchange(true)) Log(LogLevel::kWarn, text);
}

std::atomic<bool> g_warned_of_turn{false};
std::atomic<bool> g_warned_of_threads{false};

}  // namespace

Reaper* Reaper::Here() { return t_here.reaper; }

std::uint64_t Reaper::CallbackHere() { return t_here.number; }

void Reaper::SetLockProbe(void (*probe)()) { g_lock_probe.store(probe); }

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
    for (std::shared_ptr<Operation>& operation : *operations) {
      if (operation->HandOver()) {
        Push(std::move(operation));
      } else {
        without_callback_.push_back(std::move(operation));
      }
    }
    EnsureStandby();
  }
  operations->clear();
  changed_.notify_all();
}

bool Reaper::AddLate(const std::shared_ptr<Operation>& operation) {
  {
    const std::lock_guard lock(mutex_);
    if (running_.empty() && queue_.empty() && urgent_.empty()) return false;
    Push(operation);
    EnsureStandby();
  }
  changed_.notify_all();
  return true;
}

void Reaper::Push(std::shared_ptr<Operation> operation) {
  const bool urgent = running_.count(operation->callback_set_by()) > 0;
  (urgent ? urgent_ : queue_).push_back({++g_last_number, std::move(operation), Clock::now()});
}

void Reaper::AwaitTurn() {
  if (t_here.reaper == nullptr) return;
  Lock lock(t_here.reaper->mutex_);
  t_here.reaper->Await(t_here.number, lock);
}

void Reaper::Await(std::uint64_t number, Lock& lock) {
  if (HasTurn(number)) return;
  Run& run = running_.at(number);
  // One thread is left for what those who wait are waiting for.
  if (run.urgent && threads_.size() + 1 >= kMostThreads) {
    lock.unlock();
    WarnOnce(&g_warned_of_threads,
             "more than 250 callbacks of futures wait at once: the order of further ones is lost");
    lock.lock();
    return;
  }
  run.parked = true;
  ++parked_;
  EnsureStandby();
  changed_.notify_all();
  turns_.wait(lock, [this, number] { return HasTurn(number); });
  --parked_;
  run.parked = false;
  run.begun_at = run.awake_at = Clock::now();  // Of the user's code.
}

bool Reaper::HasTurn(std::uint64_t number) const {
  const auto before = [number](const std::deque<Item>& items) {
    return !items.empty() && items.front().number < number;
  };
  if (before(queue_) || before(urgent_)) return false;
  return std::all_of(running_.begin(), running_.lower_bound(number),
                     [](const auto& entry) { return entry.second.passed; });
}

Reaper::Runs::iterator Reaper::Holder() {
  return std::find_if(running_.begin(), running_.end(),
                      [](const auto& entry) { return !entry.second.passed; });
}

void Reaper::Sample(Run* run) const {
  const Clock::time_point now = Clock::now();
  if (now - run->sampled_at < tick_) return;
  run->sampled_at = now;
  if (Sleeps(run->thread)) return;
  run->awake_at = now;
  run->probed = false;
}

bool Reaper::WatchHolder(Lock& lock) {
  const auto holder = Holder();
  if (holder == running_.end() || holder->second.parked || probing_) return false;
  Run& run = holder->second;
  Sample(&run);
  if (Clock::now() - run.awake_at < patience_) return false;
  void (*const probe)() = g_lock_probe.load();
  if (probe == nullptr || run.probed) {
    run.passed = true;
    turns_.notify_all();
    lock.unlock();
    WarnOnce(&g_warned_of_turn,
             "a callback of a future waits for something that callbacks behind it may have to do: "
             "they go ahead, and may start operations in another order than on other ranks");
    lock.lock();
    return true;
  }
  const std::uint64_t number = holder->first;
  probing_ = true;
  --idle_;
  EnsureStandby();
  lock.unlock();
  probe();
  lock.lock();
  ++idle_;
  probing_ = false;
  if (const auto found = running_.find(number); found != running_.end()) {
    found->second.probed = true;  // Another tenth to get the lock, too.
    found->second.awake_at = Clock::now() - patience_ + patience_ / 10;
  }
  return true;
}

bool Reaper::MayBeginNext() {
  const auto holder = Holder();
  if (holder == running_.end() || holder->first > queue_.front().number) return true;
  Run& run = holder->second;
  const Clock::time_point now = Clock::now();
  if (run.parked || now - std::max(run.begun_at, queue_.front().queued_at) < ahead_after_)
    return false;
  Sample(&run);
  const bool sleeps = now - run.awake_at >= ahead_after_;
  return threads_.size() <= (sleeps ? kMostAheadOfSleeper : kMostAheadOfBusy);
}

bool Reaper::BeginOne(Lock& lock) {
  const bool urgent = !urgent_.empty();
  if (!urgent && (queue_.empty() || !MayBeginNext())) return false;
  std::deque<Item>& items = urgent ? urgent_ : queue_;
  Item item = std::move(items.front());
  items.pop_front();
  RunItem(std::move(item), urgent, lock);
  return true;
}

void Reaper::RunItem(Item item, bool urgent, Lock& lock) {
  Run run;
  run.thread = syscall(SYS_gettid);
  run.begun_at = run.awake_at = Clock::now();
  run.urgent = urgent;
  running_.emplace(item.number, run);
  --idle_;
  if (!urgent_.empty() || !queue_.empty()) {
    EnsureStandby();
    changed_.notify_all();  // An idle thread sleeps without a deadline until it is told.
  }
  t_here = {this, item.number};
  lock.unlock();
  item.operation->Reap();
  item.operation.reset();
  lock.lock();
  t_here = {};
  running_.erase(item.number);
  ++idle_;
  if (parked_ > 0) turns_.notify_all();
  if (stopping_) changed_.notify_all();  // Threads that watched for those parked may end.
}

bool Reaper::DropBuffers(Lock& lock) {
  if (without_callback_.empty()) return false;
  std::vector<std::shared_ptr<Operation>> operations;
  operations.swap(without_callback_);
  --idle_;
  lock.unlock();
  for (const std::shared_ptr<Operation>& operation : operations) operation->DropBuffers();
  operations.clear();
  lock.lock();
  ++idle_;
  return true;
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
  Lock lock(mutex_);
  for (;;) {  // Counted as idle here.
    JoinRetired();
    if (DropBuffers(lock) || BeginOne(lock)) {
      if (idle_ <= kMostIdleThreads || stopping_) continue;
      Retire();
      break;
    }
    const bool watch = SomebodyWaits();
    if (stopping_ && !watch) break;
    if (!watch) {
      changed_.wait(lock);
    } else if (!WatchHolder(lock)) {
      changed_.wait_for(lock, tick_);
    }
  }
  --idle_;
}

}  // namespace tidegate
