#include "collectives/transport/shm/node_service.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <optional>

#include "common/ipc/memfd.h"

namespace tidegate {
namespace {

constexpr std::size_t kDoorbellBytes = 4096;
/// How often processes without a pidfd are looked at: a death is to be known within 100 ms.
constexpr Nanoseconds kLookInterval = std::chrono::milliseconds(20);

struct ProcessState {
  std::mutex mutex;  // Taken before a service's own.
  std::shared_ptr<NodeService> service;
  bool fork_handlers = false;
};

/// Never destroyed: the service's thread may outlive static destruction.
ProcessState& State() {
  static ProcessState& state = *new ProcessState;
  return state;
}

}  // namespace

struct NodeService::PollSet {
  std::vector<pollfd> entries;
  std::vector<std::shared_ptr<Process>> processes;
  std::optional<TimePoint> until;

  void Add(int fd, short events) { entries.push_back({.fd = fd, .events = events, .revents = 0}); }
  void WakeBy(TimePoint time) { until = std::min(until.value_or(time), time); }
  void Wait() {
    timespec timeout{};
    if (until) {
      const Nanoseconds left = std::max(*until - SteadyClock().Now(), Nanoseconds::zero());
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      timeout = {.tv_sec = static_cast<time_t>(seconds.count()),
                 .tv_nsec = static_cast<long>((left - seconds).count())};
    }
    // Whatever it returns, everything is looked at again without blocking.
    ppoll(entries.data(), entries.size(), until ? &timeout : nullptr, nullptr);
  }
};

Result<std::shared_ptr<NodeService>> NodeService::Get() {
  ProcessState& state = State();
  const std::lock_guard lock(state.mutex);
  if (state.service) {
    if (!state.service->IsForked()) return state.service;
    return Status(StatusCode::kAborted,
                  "process " + std::to_string(getpid()) + " was forked from process " +
                      std::to_string(state.service->owner_) +
                      " after that had used tidegate, and cannot use it; start workers with the "
                      "spawn method, or before the first operation");
  }
  if (!state.fork_handlers) {
    const int error = pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild);
    if (error != 0) return ErrnoStatus(error, "pthread_atfork");
    state.fork_handlers = true;
  }
  Result<std::shared_ptr<NodeService>> service = Start();
  if (service.ok()) state.service = service.value();
  return service;
}

void NodeService::StopProcess() {
  ProcessState& state = State();
  std::shared_ptr<NodeService> service;
  {
    const std::lock_guard lock(state.mutex);
    if (!state.service || state.service->IsForked()) return;
    service.swap(state.service);
  }
  service->Stop();
}

Result<std::shared_ptr<NodeService>> NodeService::Start() {
  const Result<SegmentKey> key = RandomKey();
  if (!key.ok()) return key.status();
  std::string address =
      "tidegate-" + std::to_string(getpid()) + "-" + ToHex(key.value()).substr(0, 16);
  Result<UniqueFd> listener = ListenAbstract(address);
  if (!listener.ok()) return listener.status();
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus(errno, "eventfd");
  Result<UniqueFd> page_fd = CreateMemfd("tidegate-doorbell", kDoorbellBytes);
  if (!page_fd.ok()) return page_fd.status();
  TIDEGATE_RETURN_IF_ERROR(CommitPages(page_fd.value().get(), 0, kDoorbellBytes));
  Result<Mapping> page = Mapping::Map(page_fd.value().get(), kDoorbellBytes);
  if (!page.ok()) return page.status();

  std::shared_ptr<NodeService> service(
      new NodeService(std::move(address), std::move(listener).value(), std::move(wake),
                      std::move(page_fd).value(), std::move(page).value()));
  // The thread inherits the mask: signals belong to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&service->thread_, nullptr, &ThreadMain, service.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    service->stopping_ = true;  // There is nothing to join.
    return ErrnoStatus(error, "starting the tidegate-node thread");
  }
  service->thread_id_.wait(0);
  return service;
}

NodeService::NodeService(std::string address, UniqueFd listener, UniqueFd wake, UniqueFd page_fd,
                         Mapping page)
    : owner_(getpid()),
      address_(std::move(address)),
      page_fd_(std::move(page_fd)),
      page_(std::move(page)),
      listener_(std::move(listener)),
      wake_(std::move(wake)) {}

NodeService::~NodeService() {
  if (!IsForked()) Stop();
}

bool NodeService::IsForked() const { return getpid() != owner_; }

void NodeService::Stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    Wake();
  }
  pthread_join(thread_, nullptr);
  const std::lock_guard lock(mutex_);
  listener_.Reset();
  wake_.Reset();
  incoming_.clear();
  outgoing_.clear();
  peers_.clear();
  processes_.clear();
  timers_.clear();
}

void NodeService::BeforeFork() {
  ProcessState& state = State();
  state.mutex.lock();
  if (state.service) state.service->mutex_.lock();
}

void NodeService::AfterForkInParent() {
  ProcessState& state = State();
  if (state.service) state.service->mutex_.unlock();
  state.mutex.unlock();
}

void NodeService::AfterForkInChild() {
  ProcessState& state = State();
  if (state.service) {
    // Else a child that outlives its parent would keep the address connectable and the connections
    // open, and peers would take the parent for alive.
    state.service->listener_.Reset();
    state.service->incoming_.clear();
    state.service->outgoing_.clear();
    state.service->mutex_.unlock();
  }
  state.mutex.unlock();
}

std::shared_ptr<Peer> NodeService::Link(const std::string& address) {
  const std::lock_guard lock(mutex_);
  if (const auto found = peers_.find(address); found != peers_.end()) return found->second;
  std::shared_ptr<Peer> peer = PeerAt(address);
  outgoing_.push_back({.peer = peer, .socket = UniqueFd(), .retry_at = SteadyClock().Now()});
  Wake();
  return peer;
}

std::shared_ptr<Process> NodeService::Watch(pid_t pid, std::uint64_t start_time) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Process> process = WatchLocked(pid, start_time);
  Wake();
  return process;
}

void NodeService::Offer(const SegmentKey& key, int fd) {
  const std::lock_guard lock(mutex_);
  offers_[key.words] = fd;
}

void NodeService::Withdraw(const SegmentKey& key) {
  const std::lock_guard lock(mutex_);
  offers_.erase(key.words);
}

void NodeService::RunAt(TimePoint when, std::function<void()> run) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  timers_.emplace(when, std::move(run));
  Wake();
}

/// Without the lock while they run.
void NodeService::RunTimers(std::unique_lock<std::mutex>& lock, TimePoint now) {
  while (!stopping_ && !timers_.empty() && timers_.begin()->first <= now) {
    const std::function<void()> run = std::move(timers_.extract(timers_.begin()).mapped());
    lock.unlock();
    run();
    lock.lock();
  }
}

void NodeService::AddListener(DeathListener* listener) {
  const std::lock_guard lock(listener_mutex_);
  listeners_.push_back(listener);
}

void NodeService::RemoveListener(DeathListener* listener) {
  const std::lock_guard lock(listener_mutex_);
  std::erase(listeners_, listener);
}

void NodeService::NotifyListeners() {
  const std::lock_guard lock(listener_mutex_);
  for (DeathListener* listener : listeners_) listener->OnDeath();
}

std::shared_ptr<Process> NodeService::WatchLocked(pid_t pid, std::uint64_t start_time) {
  std::shared_ptr<Process> process = Process::Watch(pid, start_time);
  std::weak_ptr<Process>& known = processes_[{pid, process->start_time()}];
  if (std::shared_ptr<Process> first = known.lock()) return first;
  known = process;
  return process;
}

std::shared_ptr<Peer> NodeService::PeerAt(const std::string& address) {
  std::shared_ptr<Peer>& peer = peers_[address];
  if (!peer) peer = std::make_shared<Peer>(address);
  return peer;
}

void NodeService::BuryDead() {
  for (auto entry = peers_.begin(); entry != peers_.end();) {
    Peer& peer = *entry->second;
    if (peer.process_ && peer.process_->ended()) {
      peer.dead_.store(true, std::memory_order_release);
      news_of_death_ = true;
    }
    // Groups that used it keep the object; its address will never be anybody's again.
    entry = peer.dead() ? peers_.erase(entry) : std::next(entry);
  }
  outgoing_.remove_if([](const Outgoing& outgoing) { return outgoing.peer->dead(); });
}

void NodeService::Wake() {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is awake anyhow.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

NodeService::PollSet NodeService::BuildPollSet() {
  PollSet set;
  set.Add(wake_.get(), POLLIN);
  if (const TimePoint now = SteadyClock().Now(); accept_at_ <= now)
    set.Add(listener_.get(), POLLIN);
  else
    set.WakeBy(accept_at_);
  for (const Incoming& incoming : incoming_) {
    set.Add(incoming.socket.get(), POLLIN);
    set.WakeBy(incoming.deadline);
  }
  for (const Outgoing& outgoing : outgoing_) {
    if (outgoing.socket.valid())
      set.Add(outgoing.socket.get(), POLLIN);
    else
      set.WakeBy(outgoing.retry_at);
  }
  if (!timers_.empty()) set.WakeBy(timers_.begin()->first);
  for (auto entry = processes_.begin(); entry != processes_.end();) {
    std::shared_ptr<Process> process = entry->second.lock();
    if (!process || process->ended()) {
      entry = processes_.erase(entry);
      continue;
    }
    if (process->pidfd() >= 0)
      set.Add(process->pidfd(), POLLIN);
    else
      set.WakeBy(SteadyClock().Now() + kLookInterval);
    set.processes.push_back(std::move(process));
    ++entry;
  }
  return set;
}

void* NodeService::ThreadMain(void* service) {
  pthread_setname_np(pthread_self(), "tidegate-node");
  auto* const self = static_cast<NodeService*>(service);
  self->thread_id_.store(static_cast<pid_t>(syscall(SYS_gettid)), std::memory_order_release);
  self->thread_id_.notify_all();
  self->Run();
  return nullptr;
}

void NodeService::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    {
      PollSet set = BuildPollSet();
      lock.unlock();
      set.Wait();
      lock.lock();
      for (const std::shared_ptr<Process>& process : set.processes)
        if (process->CheckEnded()) news_of_death_ = true;
    }
    std::uint64_t wakes;
    [[maybe_unused]] const ssize_t drained = read(wake_.get(), &wakes, sizeof(wakes));
    const TimePoint now = SteadyClock().Now();
    AcceptAll(now);
    ServeIncoming(now);
    AdvanceOutgoing(now);
    BuryDead();
    RunTimers(lock, now);
    if (news_of_death_) {
      news_of_death_ = false;
      lock.unlock();
      NotifyListeners();
      lock.lock();
    }
  }
}

}  // namespace tidegate
