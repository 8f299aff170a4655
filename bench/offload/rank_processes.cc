#include "bench/offload/rank_processes.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <chrono>

#include "bench/offload/workload.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/futex.h"

namespace tidegate::bench {

RankProcesses::RankProcesses(const std::vector<offload::ThreadPlace>& places,
                             std::size_t elements) {
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TIDEGATE_CHECK(memory != MAP_FAILED);
  shared_ = new (memory) Shared{};
  for (const offload::ThreadPlace& place : places) {
    const pid_t child = fork();
    TIDEGATE_CHECK(child >= 0);
    if (child == 0) Serve(*shared_, place, elements);
    children_.push_back(child);
  }
}

RankProcesses::~RankProcesses() {
  for (const pid_t child : children_) kill(child, SIGKILL);
  for (const pid_t child : children_) waitpid(child, nullptr, 0);
  munmap(shared_, sizeof(Shared));
}

void RankProcesses::Serve(Shared& shared, const offload::ThreadPlace& place, std::size_t elements) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto segment = offload::NodeSegment::Create({});
  const auto arena = offload::Arena::Create(segment.value(), 0);
  const AdamWTensor memory(*arena.value(), elements, {});
  offload::ThreadPool pool({place});
  offload::StepRunner runner(pool);
  const offload::StepTensor tensors[] = {memory.tensor()};
  for (std::uint32_t round = 0;; ++round) {
    while (shared.round.load(std::memory_order_acquire) == round)
      FutexWait(shared.round, round, kNoDeadline);
    if (!runner.Update(tensors).ok()) _exit(1);
    shared.done.fetch_add(1, std::memory_order_release);
    FutexWakeAll(shared.done);
  }
}

Status RankProcesses::Step() {
  ++rounds_;
  shared_->round.store(rounds_, std::memory_order_release);
  FutexWakeAll(shared_->round);
  const TimePoint deadline = SteadyClock().Now() + std::chrono::seconds(60);
  const auto wanted = rounds_ * static_cast<std::uint32_t>(children_.size());
  for (std::uint32_t done; (done = shared_->done.load(std::memory_order_acquire)) != wanted;) {
    if (SteadyClock().Now() >= deadline)
      return {StatusCode::kTimeout, "a process of the benchmark did not step within 60 s"};
    FutexWait(shared_->done, done, deadline);
  }
  return {};
}

}  // namespace tidegate::bench
