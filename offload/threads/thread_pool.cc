#include "offload/threads/thread_pool.h"

#include <memory>
#include <utility>

#include "common/check.h"
#include "common/fork_generation.h"
#include "offload/threads/crew.h"

namespace tidegate::offload {

ThreadPool::ThreadPool(std::vector<ThreadPlace> places) : places_(std::move(places)) {
  TIDEGATE_CHECK(!places_.empty() && places_.size() <= kMostThreads);
  crew_.store(std::make_unique<Crew>(places_, nullptr).release());
}

ThreadPool::~ThreadPool() {
  for (const Crew* crew = crew_.load(std::memory_order_acquire); crew != nullptr;) {
    const std::unique_ptr<const Crew> owned(crew);
    crew = owned->ancestor();
  }
}

Status ThreadPool::Start() { return CrewOfThisProcess().Start(); }

Status ThreadPool::Run(std::size_t items, FunctionRef<Status(std::size_t, int)> body) {
  if (Crew::IsInBody()) {
    return Status(StatusCode::kInvalidArgument,
                  "a job of a thread pool was asked for from within a job, which would wait for "
                  "itself");
  }
  return CrewOfThisProcess().Run(items, body);
}

Crew& ThreadPool::CrewOfThisProcess() {
  Crew* crew = crew_.load(std::memory_order_acquire);
  while (crew->generation() != ForkGeneration()) {
    // That of an ancestor stays as it was at the fork, its lock perhaps taken by a thread that is
    // not here; another thread of this process may be looking at it.
    auto fresh = std::make_unique<Crew>(places_, crew);
    if (crew_.compare_exchange_strong(crew, fresh.get(), std::memory_order_acq_rel))
      crew = fresh.release();
  }
  return *crew;
}

}  // namespace tidegate::offload
