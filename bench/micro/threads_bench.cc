#include <benchmark/benchmark.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <vector>

#include "common/config.h"
#include "common/pause.h"
#include "offload/threads/thread_plan.h"
#include "offload/threads/thread_pool.h"

// What a job of the offload pool costs beside its items, one item a thread. "empty": the call
// alone, whoever does the items. "together": until every thread is at its item, so with its
// wake-up. "after/pause": the caller has slept for as many microseconds before each call, and the
// pool's threads with it. "misplaced": the caller comes from the processor of thread 1.

namespace tidegate::bench {
namespace {

std::vector<offload::ThreadPlace> Places(std::int64_t threads) {
  return offload::PlanThreads(
      offload::ReadThreadFacts(static_cast<std::size_t>(threads), ProcessEnvironment()));
}

void Sleep(std::int64_t microseconds) {
  const timespec pause{.tv_sec = 0, .tv_nsec = microseconds * 1000};
  nanosleep(&pause, nullptr);
}

void RunOn(int cpu) {
  cpu_set_t mask;
  cpu_set_t one;
  sched_getaffinity(0, sizeof(mask), &mask);
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(cpu), &one);
  sched_setaffinity(0, sizeof(one), &one);
  sched_setaffinity(0, sizeof(mask), &mask);
}

/// Times pool.Run alone, with `prepare` before each.
template <typename Body, typename Prepare>
void Time(benchmark::State& state, offload::ThreadPool& pool, const Body& body,
          const Prepare& prepare) {
  const auto items = static_cast<std::size_t>(pool.threads());
  if (!pool.Run(items, body).ok()) return state.SkipWithError("the pool failed");
  for ([[maybe_unused]] auto _ : state) {
    prepare();
    const auto start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(pool.Run(items, body).ok());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(took.count());
  }
}

void Empty(benchmark::State& state) {
  offload::ThreadPool pool(Places(state.range(0)));
  const auto body = [](std::size_t, int) { return Status(); };
  Time(state, pool, body, [&] {
    if (state.range(1) > 0) Sleep(state.range(1));
  });
}

void Together(benchmark::State& state) {
  offload::ThreadPool pool(Places(state.range(0)));
  std::atomic<int> missing{pool.threads()};
  const auto body = [&](std::size_t, int) {
    missing.fetch_sub(1);
    while (missing.load() > 0) Pause();
    return Status();
  };
  Time(state, pool, body, [&] {
    missing.store(pool.threads());
    if (state.range(1) > 0) Sleep(state.range(1));
  });
}

void Displaced(benchmark::State& state) {
  offload::ThreadPool pool(Places(state.range(0)));
  for (const offload::ThreadPlace& place : pool.places())
    if (place.cpus.size() != 1) return state.SkipWithError("the threads are not pinned");
  const auto body = [](std::size_t, int) { return Status(); };
  std::size_t last = 0;
  Time(state, pool, body, [&] {
    last = (last + 1) % pool.places().size();
    RunOn(pool.places()[last].cpus[0]);
  });
}

template <typename Bench>
void Register(const char* name, Bench bench, std::int64_t threads, std::int64_t pause) {
  auto* const registered = benchmark::RegisterBenchmark(name, bench);
  // By number: the time that counts is a small part of the time that passes.
  registered->ArgNames({"threads", "pause"})
      ->Args({threads, pause})
      ->UseManualTime()
      ->Iterations(pause == 0     ? 100000
                   : pause < 1000 ? 3000
                                  : 300);
}

// What throws ends the program. NOLINTNEXTLINE(bugprone-throwing-static-initialization)
const bool kRegistered = [] {
  for (const std::int64_t threads : {1, 2}) {
    for (const std::int64_t pause : {0, 100, 2000}) {
      Register("pool/empty", Empty, threads, pause);
      Register("pool/together", Together, threads, pause);
    }
  }
  Register("pool/displaced", Displaced, 2, 0);
  return true;
}();

}  // namespace
}  // namespace tidegate::bench
