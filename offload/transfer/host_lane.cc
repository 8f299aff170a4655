#include "offload/transfer/host_lane.h"

#include <csignal>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/fork_generation.h"

namespace tidegate::offload {
namespace {

constexpr std::uint64_t kFailed = 1;

std::uint64_t CopiedOf(std::uint64_t state) { return state / 2; }
bool HasFailed(std::uint64_t state) { return (state & kFailed) != 0; }

Status CopyByMemcpy(const Chunk& chunk) {
  std::memcpy(chunk.destination, chunk.source, chunk.bytes);
  return Status();
}

std::string NameOfChunk(std::uint64_t number, Direction direction) {
  return "chunk " + std::to_string(number) + " of the " + std::string(NameOf(direction)) + " lane";
}

}  // namespace

Result<std::unique_ptr<HostLane>> HostLane::Create(Direction direction, std::size_t capacity,
                                                   CopyFunction copy) {
  TIDEGATE_CHECK(capacity > 0);
  if (copy == nullptr) copy = CopyByMemcpy;
  // NOLINTNEXTLINE: the constructor is private
  std::unique_ptr<HostLane> lane(new HostLane(direction, capacity, std::move(copy)));
  // Signals are for the threads of the program.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&lane->thread_, nullptr, &HostLane::Main, lane.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    return Status(StatusCode::kResourceExhausted,
                  "no thread for the " + std::string(NameOf(direction)) +
                      " lane: " + ErrnoStatus(error, "pthread_create").message());
  }
  lane->has_thread_ = true;
  return lane;
}

HostLane::HostLane(Direction direction, std::size_t capacity, CopyFunction copy)
    : direction_(direction),
      copy_(std::move(copy)),
      generation_(ForkGeneration()),
      ring_(capacity) {}

HostLane::~HostLane() {
  if (!has_thread_ || generation_ != ForkGeneration()) return;
  Fail(Status(StatusCode::kAborted, "the lane was destroyed"));
  stop_.store(true, std::memory_order_release);
  work_.Ring();
  pthread_join(thread_, nullptr);
}

Result<CopyEvent> HostLane::Copy(const Chunk& chunk, TimePoint deadline) {
  TIDEGATE_RETURN_IF_ERROR(CheckProcess());
  TIDEGATE_RETURN_IF_ERROR(CheckChunk(chunk));
  if (!Await([&] { return HasRoom(); }, deadline)) return TimeoutOf("room for a chunk");
  const std::uint64_t number = queued_.load(std::memory_order_relaxed) + 1;
  if (HasFailed(state_.load(std::memory_order_acquire))) return FailureOf(number);
  ring_[number % ring_.size()] = chunk;
  queued_.store(number, std::memory_order_release);
  work_.Ring();
  return CopyEvent{.number = number};
}

bool HostLane::HasRoom() const {
  const std::uint64_t state = state_.load(std::memory_order_acquire);
  return HasFailed(state) ||
         queued_.load(std::memory_order_relaxed) - CopiedOf(state) < ring_.size();
}

bool HostLane::IsDone(CopyEvent event) const {
  const std::uint64_t state = state_.load(std::memory_order_acquire);
  return CopiedOf(state) >= event.number || HasFailed(state) || !CheckProcess().ok();
}

Status HostLane::Wait(CopyEvent event, TimePoint deadline) {
  if (CopiedOf(state_.load(std::memory_order_acquire)) >= event.number) return Status();
  TIDEGATE_RETURN_IF_ERROR(CheckProcess());
  if (event.number > queued_.load(std::memory_order_acquire)) {
    return Status(StatusCode::kInvalidArgument,
                  NameOfChunk(event.number, direction_) + " was never queued");
  }
  if (!Await([&] { return IsDone(event); }, deadline))
    return TimeoutOf(("chunk " + std::to_string(event.number)).c_str());
  if (CopiedOf(state_.load(std::memory_order_acquire)) >= event.number) return Status();
  return FailureOf(event.number);
}

void HostLane::Abort(const Status& reason) {
  if (!CheckProcess().ok()) return;
  Fail(reason.ok() ? Status(StatusCode::kAborted, "the lane was aborted") : reason);
}

Status HostLane::AwaitIdle(TimePoint deadline) {
  TIDEGATE_RETURN_IF_ERROR(CheckProcess());
  const auto is_idle = [&] {
    const std::uint64_t state = state_.load(std::memory_order_seq_cst);
    if (HasFailed(state)) return !copying_.load(std::memory_order_seq_cst);
    return CopiedOf(state) == queued_.load(std::memory_order_acquire);
  };
  return Await(is_idle, deadline) ? Status() : TimeoutOf("the end of what it is at");
}

template <typename Condition>
bool HostLane::Await(const Condition& condition, TimePoint deadline) {
  while (!condition()) {
    if (deadline != kNoDeadline && SteadyClock().Now() >= deadline) return false;
    const std::uint32_t ticket = progress_.Arm();
    if (condition())
      progress_.Disarm();
    else
      progress_.Sleep(ticket, deadline);
  }
  return true;
}

void* HostLane::Main(void* lane) {
  pthread_setname_np(pthread_self(), "tidegate-lane");
  static_cast<HostLane*>(lane)->Serve();
  return nullptr;
}

void HostLane::Serve() {
  for (std::uint64_t number = 1;; ++number) {
    const auto has_work = [&] {
      return queued_.load(std::memory_order_acquire) >= number ||
             stop_.load(std::memory_order_acquire);
    };
    while (!has_work()) {
      const std::uint32_t ticket = work_.Arm();
      if (has_work())
        work_.Disarm();
      else
        work_.Sleep(ticket, kNoDeadline);
    }
    if (!Make(number)) return;
  }
}

bool HostLane::Make(std::uint64_t number) {
  copying_.store(true, std::memory_order_seq_cst);
  std::uint64_t state = state_.load(std::memory_order_seq_cst);
  Status status;
  if (!HasFailed(state)) {
    const Chunk& chunk = ring_[number % ring_.size()];
    try {
      if (chunk.bytes > 0) status = copy_(chunk);
    } catch (const std::exception& error) {
      status = Status(StatusCode::kInternal, std::string("it threw: ") + error.what());
    } catch (...) {
      status = Status(StatusCode::kInternal, "it threw what is no std::exception");
    }
    if (!status.ok()) {
      Fail(Status(status.code(), NameOfChunk(number, direction_) + " (" +
                                     std::to_string(chunk.bytes) +
                                     " bytes) failed: " + status.message()));
    } else {
      // Unless the lane was failed meanwhile: then this chunk has failed with it for good.
      state = (number - 1) * 2;
      state_.compare_exchange_strong(state, number * 2, std::memory_order_seq_cst);
    }
  }
  copying_.store(false, std::memory_order_seq_cst);
  progress_.Ring();
  return !HasFailed(state_.load(std::memory_order_relaxed));
}

void HostLane::Fail(Status reason) {
  const std::lock_guard lock(failing_);
  if (HasFailed(state_.load(std::memory_order_relaxed))) return;
  failure_ = std::move(reason);
  state_.fetch_or(kFailed, std::memory_order_seq_cst);
  progress_.Ring();
}

Status HostLane::CheckProcess() const {
  if (generation_ == ForkGeneration()) return Status();
  return Status(StatusCode::kUnsupported,
                "the " + std::string(NameOf(direction_)) +
                    " lane belongs to the process that this one was forked from; make a new one");
}

Status HostLane::FailureOf(std::uint64_t number) const {
  const std::string name = NameOfChunk(number, direction_);
  if (failure_.message().starts_with(name + " ")) return failure_;
  return Status(failure_.code(), name + " was not copied: " + failure_.message());
}

Status HostLane::TimeoutOf(const char* what) const {
  return Status(StatusCode::kTimeout,
                "the " + std::string(NameOf(direction_)) + " lane was waited for in vain, for " +
                    what + "; it has copied " +
                    std::to_string(CopiedOf(state_.load(std::memory_order_relaxed))) + " of " +
                    std::to_string(queued_.load(std::memory_order_relaxed)) + " chunks");
}

}  // namespace tidegate::offload
