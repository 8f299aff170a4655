#include "offload/threads/crew.h"

#include <cxxabi.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "common/fork_generation.h"
#include "common/futex.h"
#include "common/pause.h"

namespace tidegate::offload {
namespace {

/// How long a thread spins for the end of a job, or for the next one where jobs follow each other
/// faster than this. A wake-up costs about as much on a virtual machine, so that a spin in vain at
/// most doubles the cost.
constexpr Nanoseconds kSpin = std::chrono::microseconds(20);
/// How soon a thread is missed that has ended in a job.
constexpr Nanoseconds kLivenessPeriod = std::chrono::milliseconds(100);
/// How long the first job waits for new threads, which begin within microseconds.
constexpr Nanoseconds kStartPatience = std::chrono::seconds(10);

constexpr std::uint32_t kNumbers = std::uint32_t{1} << 30;
constexpr std::uint64_t kMostItems = std::numeric_limits<std::uint32_t>::max();

/// Whether job `number` comes after job `other`, as numbers go round.
bool IsAfter(std::uint32_t number, std::uint32_t other) {
  const std::uint32_t distance = (number - other) % kNumbers;
  return distance != 0 && distance < kNumbers / 2;
}

TimePoint Now() { return SteadyClock().Now(); }

/// Whether `condition` came true within kSpin.
template <typename Condition>
bool SpinFor(const Condition& condition) {
  const TimePoint deadline = Now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (condition()) return true;
      Pause();
    }
  } while (Now() < deadline);
  return false;
}

std::uint64_t RangeOf(std::size_t items, std::size_t thread, std::size_t threads) {
  const auto begin = [&](std::size_t of) {
    return std::uint64_t{of * (items / threads) + std::min(of, items % threads)};
  };
  return begin(thread) << 32 | begin(thread + 1);
}

std::optional<std::size_t> TakeFirst(std::atomic<std::uint64_t>& range) {
  std::uint64_t left = range.load(std::memory_order_relaxed);
  while (left >> 32 < (left & kMostItems)) {
    if (range.compare_exchange_weak(left, left + (std::uint64_t{1} << 32),
                                    std::memory_order_relaxed))
      return left >> 32;
  }
  return std::nullopt;
}

std::optional<std::size_t> TakeLast(std::atomic<std::uint64_t>& range) {
  std::uint64_t left = range.load(std::memory_order_relaxed);
  while (left >> 32 < (left & kMostItems)) {
    if (range.compare_exchange_weak(left, left - 1, std::memory_order_relaxed))
      return (left & kMostItems) - 1;
  }
  return std::nullopt;
}

/// Binds `thread`, 0 for the calling one, to these processors; whether the system agrees. It does
/// not where a processor has gone, or the cpuset has changed, since the places were chosen.
bool Confine(pid_t thread, std::span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &set);
  return sched_setaffinity(thread, sizeof(set), &set) == 0;
}

thread_local bool t_in_body = false;

std::string ItemText(std::size_t item) { return "item " + std::to_string(item) + " of a job"; }

}  // namespace

Crew::Crew(std::span<const ThreadPlace> places, Crew* ancestor)
    : places_(places.begin(), places.end()),
      generation_(ForkGeneration()),
      ancestor_(ancestor),
      seats_(places.size()),
      entries_(places.size()) {
  const int threads = static_cast<int>(places_.size());
  for (int thread = 0; thread < threads; ++thread) {
    const auto index = static_cast<std::size_t>(thread);
    entries_[index] = {.crew = this, .thread = thread};
    const ThreadPlace& place = places_[index];
    seats_[index].numa = place.numa;
    if (place.cpus.size() == 1 && place.cpus[0] < CPU_SETSIZE) seats_[index].cpu = place.cpus[0];
    std::vector<int>& others = seats_[index].others;
    for (int step = 1; step < threads; ++step) others.push_back((thread + step) % threads);
    std::ranges::stable_partition(others, [&](int other) {
      return places_[static_cast<std::size_t>(other)].numa == places_[index].numa;
    });
  }
}

Crew::~Crew() {
  if (started_ && generation_ == ForkGeneration()) StopThreads(seats_.size());
}

bool Crew::IsInBody() { return t_in_body; }

Status Crew::Start() {
  const std::lock_guard lock(callers_);
  return StartThreads();
}

Status Crew::StartThreads() {
  if (started_) return Status();
  // Signals are for the threads of the program.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  std::size_t made = 1;
  for (; made < seats_.size(); ++made) {
    error = pthread_create(&seats_[made].handle, nullptr, &Crew::Main, &entries_[made]);
    if (error != 0) break;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    StopThreads(made);
    return Status(StatusCode::kResourceExhausted,
                  "the system gives the offload pool " + std::to_string(made - 1) + " of " +
                      std::to_string(seats_.size() - 1) +
                      " threads: " + ErrnoStatus(error, "pthread_create").message() +
                      "; limit them with TIDEGATE_OFFLOAD_THREADS");
  }
  // With all in their places the first job, which touches memory first, is divided as later ones.
  const TimePoint deadline = Now() + kStartPatience;
  for (;;) {
    const std::uint32_t ready = ready_.load(std::memory_order_acquire);
    if (ready + 1 >= seats_.size() || Now() >= deadline) break;
    FutexWait(ready_, ready, deadline);
  }
  started_ = true;
  return Status();
}

void Crew::StopThreads(std::size_t made) {
  stop_.store(true, std::memory_order_relaxed);
  number_.store((number_.load(std::memory_order_relaxed) + 1) % kNumbers,
                std::memory_order_release);
  bell_.Ring();
  for (std::size_t thread = 1; thread < made; ++thread)
    pthread_join(seats_[thread].handle, nullptr);
  stop_.store(false, std::memory_order_relaxed);
  ready_.store(0, std::memory_order_relaxed);
  started_ = false;
}

Status Crew::Run(std::size_t items, Body body) {
  if (items > kMostItems) {
    return Status(StatusCode::kInvalidArgument, std::to_string(items) +
                                                    " items are more than a job can have, " +
                                                    std::to_string(kMostItems));
  }
  const std::lock_guard lock(callers_);
  if (!lost_.ok()) return lost_;
  TIDEGATE_RETURN_IF_ERROR(StartThreads());
  if (items == 0) return Status();
  SeatCaller();

  failed_.store(false, std::memory_order_relaxed);
  body_.emplace(body);
  for (std::size_t thread = 0; thread < seats_.size(); ++thread)
    seats_[thread].range.store(RangeOf(items, thread, seats_.size()), std::memory_order_relaxed);
  if (items == 1 || seats_.size() == 1) {  // All of it is the caller's own.
    Work(0);
    return Outcome();
  }
  usual_gap_ = (3 * usual_gap_ + std::min(Now() - last_end_, 4 * kSpin)) / 4;
  spin_.store(usual_gap_ < kSpin, std::memory_order_relaxed);
  const std::uint32_t number = (number_.load(std::memory_order_relaxed) + 1) % kNumbers;
  number_.store(number, std::memory_order_release);
  bell_.Ring();
  try {
    Work(0);
  } catch (...) {  // Only what ends the calling thread comes here; the body ends with this frame.
    failed_.store(true, std::memory_order_relaxed);
    Close(number);
    throw;
  }
  Close(number);
  return Outcome();
}

void Crew::SeatCaller() {
  if (seats_.size() == 1 || seats_[0].cpu < 0) return;
  const int cpu = sched_getcpu();
  const int home = seats_[0].cpu;
  if (cpu == home) return;
  const auto is_here = [&](const Seat& seat) { return seat.cpu == cpu; };
  const auto seat = std::find_if(seats_.begin() + 1, seats_.end(), is_here);
  if (seat != seats_.end() && seat->numa == seats_[0].numa) {
    // To move a thread that sleeps takes 2 us, to move oneself 40.
    if (Confine(seat->tid.load(std::memory_order_relaxed), {&home, 1}))
      std::swap(seat->cpu, seats_[0].cpu);
    return;
  }
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0 ||
      !CPU_ISSET(static_cast<std::size_t>(home), &mask))
    return;
  // It stays where it has been moved to, as nothing calls it away.
  if (Confine(0, {&home, 1})) static_cast<void>(sched_setaffinity(0, sizeof(mask), &mask));
}

void* Crew::Main(void* entry) {
  const auto* const self = static_cast<const Entry*>(entry);
  self->crew->Serve(self->thread);
  return nullptr;
}

void Crew::Serve(int thread) {
  const auto index = static_cast<std::size_t>(thread);
  pthread_setname_np(pthread_self(), "tidegate-step");
  // Where the system does not let it, it runs anywhere.
  if (!places_[index].cpus.empty()) static_cast<void>(Confine(0, places_[index].cpus));
  Seat& seat = seats_[index];
  seat.tid.store(gettid(), std::memory_order_relaxed);
  std::uint32_t number = number_.load(std::memory_order_acquire);
  ready_.fetch_add(1, std::memory_order_release);
  FutexWakeAll(ready_);
  if (stop_.load(std::memory_order_relaxed)) return;
  for (;;) {
    number = AwaitJob(number);
    if (stop_.load(std::memory_order_relaxed)) return;
    // Its seat may have been closed to this job, or even to later ones, since the number was read.
    std::uint32_t phase = seat.phase.load(std::memory_order_relaxed);
    if (!IsAfter(number, phase / 4) ||
        !seat.phase.compare_exchange_strong(phase, number * 4 + kJoined, std::memory_order_acq_rel))
      continue;
    Work(thread);
    // Release: what the items did is the caller's.
    if (seat.phase.exchange(number * 4 + kLeft, std::memory_order_acq_rel) == number * 4 + kAwaited)
      FutexWakeAll(seat.phase);
  }
}

std::uint32_t Crew::AwaitJob(std::uint32_t seen) {
  const auto is_new = [&] { return number_.load(std::memory_order_acquire) != seen; };
  if (!spin_.load(std::memory_order_relaxed) || !SpinFor(is_new)) {
    while (!is_new()) {
      const std::uint32_t ticket = bell_.Arm();
      if (is_new())
        bell_.Disarm();
      else
        bell_.Sleep(ticket, kNoDeadline);
    }
  }
  return number_.load(std::memory_order_acquire);
}

void Crew::Work(int thread) {
  t_in_body = true;
  Seat& own = seats_[static_cast<std::size_t>(thread)];
  const auto work_on = [&](Seat& seat, auto take) {
    while (!failed_.load(std::memory_order_relaxed)) {
      const std::optional<std::size_t> item = take(seat.range);
      if (!item) return;
      Do(*item, thread);
    }
  };
  work_on(own, TakeFirst);
  for (const int other : own.others) work_on(seats_[static_cast<std::size_t>(other)], TakeLast);
  t_in_body = false;
}

// The C library's unwinding has no object for a reference to bind to, which UBSan would report.
[[gnu::no_sanitize("null")]] void Crew::Do(std::size_t item, int thread) {
  Status status;
  try {
    status = (*body_)(item, thread);
  } catch (const abi::__forced_unwind&) {
    throw;  // pthread_exit or a cancellation: the C library ends the process for who swallows it.
  } catch (const std::bad_alloc&) {
    status = Status(StatusCode::kResourceExhausted, ItemText(item) + " ran out of memory");
  } catch (const std::exception& error) {
    status = Status(StatusCode::kInternal, ItemText(item) + " threw: " + error.what());
  } catch (...) {
    status = Status(StatusCode::kInternal, ItemText(item) + " threw what is no std::exception");
  }
  if (status.ok()) [[likely]]
    return;
  Seat& seat = seats_[static_cast<std::size_t>(thread)];
  if (!seat.failed_item || item < *seat.failed_item) {
    seat.failed_item = item;
    seat.failure = std::move(status);
  }
  failed_.store(true, std::memory_order_relaxed);
}

void Crew::Close(std::uint32_t number) {
  bool someone_missed = false;
  for (std::size_t thread = 1; thread < seats_.size(); ++thread) {
    Seat& seat = seats_[thread];
    std::uint32_t phase = seat.phase.load(std::memory_order_acquire);
    if (phase / 4 != number &&
        seat.phase.compare_exchange_strong(phase, number * 4 + kClosed, std::memory_order_acq_rel))
      someone_missed = true;
    else if (phase != number * 4 + kLeft)
      AwaitLeaving(thread, number);
  }
  last_end_ = Now();
  if (!someone_missed || last_end_ - last_check_ < kLivenessPeriod) return;
  last_check_ = last_end_;
  for (std::size_t thread = 1; thread < seats_.size(); ++thread)
    if (!IsAlive(seats_[thread])) Lose(thread);
}

void Crew::AwaitLeaving(std::size_t thread, std::uint32_t number) {
  Seat& seat = seats_[thread];
  const std::uint32_t awaited = number * 4 + kAwaited;
  const auto has_left = [&] {
    return seat.phase.load(std::memory_order_acquire) == number * 4 + kLeft;
  };
  if (SpinFor(has_left)) return;
  std::uint32_t phase = number * 4 + kJoined;
  seat.phase.compare_exchange_strong(phase, awaited, std::memory_order_acq_rel);
  while (!has_left()) {
    FutexWait(seat.phase, awaited, Now() + kLivenessPeriod);
    if (has_left()) return;
    if (!IsAlive(seat)) return Lose(thread);
  }
}

bool Crew::IsAlive(const Seat& seat) const {
  const pid_t tid = seat.tid.load(std::memory_order_relaxed);
  return tid == 0 || syscall(SYS_tgkill, getpid(), tid, 0) == 0 || errno != ESRCH;
}

void Crew::Lose(std::size_t thread) {
  lost_ =
      Status(StatusCode::kInternal,
             "thread " + std::to_string(thread) +
                 " of the offload pool has ended (pthread_exit, a cancellation or exit of the "
                 "thread in foreign code?); what it was at is undone, and the pool cannot be used "
                 "any more");
}

Status Crew::Outcome() {
  Seat* first = nullptr;
  if (failed_.load(std::memory_order_relaxed)) {
    for (Seat& seat : seats_)
      if (seat.failed_item && (first == nullptr || *seat.failed_item < *first->failed_item))
        first = &seat;
  }
  if (!lost_.ok() || first == nullptr) return lost_;
  Status failure = std::move(first->failure);
  for (Seat& seat : seats_) seat.failed_item.reset();
  return failure;
}

}  // namespace tidegate::offload
