#include <benchmark/benchmark.h>

#include <cstddef>
#include <memory>
#include <thread>

#include "bench/micro/stepped_group.h"
#include "collectives/algorithms/algorithms.h"
#include "collectives/calibration/data_paths.h"
#include "collectives/executor/execution.h"
#include "collectives/transport/loopback/loopback.h"
#include "common/check.h"

// Whole collectives over the loopback transport: the time is of all ranks together where one thread
// drives them, and of one rank where each has a thread.

namespace tidegate::bench {
namespace {

void Collectives(benchmark::State& state, Collective collective) {
  SteppedGroup group(collective, static_cast<int>(state.range(0)),
                     static_cast<std::size_t>(state.range(1)));
  for ([[maybe_unused]] auto _ : state) group.RunOnce();
}
BENCHMARK_CAPTURE(Collectives, all_gather, Collective::kAllGather)
    ->ArgNames({"ranks", "bytes"})
    ->ArgsProduct({{2, 4, 8}, {64, 8 << 10, 64 << 10}});
BENCHMARK_CAPTURE(Collectives, reduce_scatter, Collective::kReduceScatter)
    ->ArgNames({"ranks", "bytes"})
    ->ArgsProduct({{2, 4, 8}, {64, 8 << 10, 64 << 10}});
BENCHMARK_CAPTURE(Collectives, barrier, Collective::kBarrier)
    ->ArgNames({"ranks", "bytes"})
    ->ArgsProduct({{2, 4, 8}, {0}});

void Preparation(benchmark::State& state) {
  SteppedGroup group(Collective::kAllGather, static_cast<int>(state.range(0)), 8 << 10);
  for ([[maybe_unused]] auto _ : state) group.Prepare();
}
BENCHMARK(Preparation)->ArgName("ranks")->Arg(2)->Arg(4)->Arg(8);

// A thread a rank; they begin and end together, since all make equally many calls.
std::unique_ptr<LoopbackGroup> threaded_group;

void MakeGroup(const benchmark::State& state) {
  threaded_group = std::make_unique<LoopbackGroup>(state.threads(), std::size_t{1} << 20);
}
void DropGroup(const benchmark::State&) { threaded_group = nullptr; }

void BarrierOfThreads(benchmark::State& state) {
  const int rank = state.thread_index();
  const Schedule schedule = FindAlgorithm(Collective::kBarrier, "arrival")
                                ->build({.rank = rank, .ranks = state.threads()});
  const CollectiveRequest request{.collective = Collective::kBarrier};
  Execution execution(threaded_group->transport(rank), /*lane=*/0);
  std::uint64_t sequence = 0;
  for ([[maybe_unused]] auto _ : state) {
    const PreparedCall call =
        Prepare(request, schedule, ++sequence, std::size_t{1} << 20, DataPaths());
    TIDEGATE_CHECK(execution.Start(Bind(call)).ok());
    while (execution.Advance().value() == Execution::Outcome::kBlocked) std::this_thread::yield();
  }
}
BENCHMARK(BarrierOfThreads)
    ->Setup(MakeGroup)
    ->Teardown(DropGroup)
    ->Threads(1)
    ->Threads(2)
    ->Threads(4)
    ->UseRealTime();

}  // namespace
}  // namespace tidegate::bench
