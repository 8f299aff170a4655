// tidegate_bench_step [--elements 64M] [--rounds 11]: steps of the offload engine beside what
// memory allows and beside each other, in turns, as ratios of times. docs/offload.md has the aims.

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/offload/rank_processes.h"
#include "bench/offload/workload.h"
#include "common/config.h"
#include "common/machine/machine.h"
#include "common/median.h"
#include "common/simd/targets.h"
#include "common/units.h"
#include "offload/transfer/host_lane.h"

namespace tidegate::bench {
namespace {

using offload::ElementType;
using offload::Layout;
using offload::Master;
using offload::States;

struct Options {
  std::size_t elements = std::size_t{64} << 20;
  int rounds = 11;
};

/// `over` / `under` of each round: their median, and where half of them lie.
void PrintRatio(const std::string& what, const std::vector<double>& over,
                const std::vector<double>& under, const char* aim) {
  std::vector<double> ratios;
  ratios.reserve(over.size());
  for (std::size_t i = 0; i < over.size(); ++i) ratios.push_back(over[i] / under[i]);
  std::ranges::sort(ratios);
  std::printf("| %s | %.3f (%.3f..%.3f) | %.3f | %s | %.2f |\n", what.c_str(), Median(ratios),
              ratios[ratios.size() / 4], ratios[ratios.size() * 3 / 4], ratios.front(), aim,
              1e3 * Median(over));
}

Status Measure(const Options& options, std::vector<offload::ThreadPlace> places,
               RankProcesses* ranks) {
  const std::size_t threads = places.size();
  offload::ThreadPool pool(std::move(places));
  const auto segment = offload::NodeSegment::Create({});
  if (!segment.ok()) return segment.status();
  const auto made = offload::Arena::Create(segment.value(), 0);
  if (!made.ok()) return made.status();
  const std::shared_ptr<offload::Arena>& arena = made.value();

  const Layout mixed_layout{ElementType::kBFloat16, ElementType::kBFloat16, Master::kFloat32,
                            States::kFloat32};
  const std::pair<const char*, Layout> others[] = {
      {"split master, bf16 gradient",
       {ElementType::kBFloat16, ElementType::kBFloat16, Master::kSplit, States::kFloat32}},
      {"split master, bf16 states",
       {ElementType::kBFloat16, ElementType::kBFloat16, Master::kSplit, States::kBFloat16}},
      {"split master, 8-bit states",
       {ElementType::kBFloat16, ElementType::kBFloat16, Master::kSplit, States::kBlock8}},
  };
  const AdamWTensor plain(*arena, options.elements, {});
  const AdamWTensor mixed(*arena, options.elements, mixed_layout);
  std::vector<AdamWTensor> small;
  for (const auto& other : others) small.emplace_back(*arena, options.elements, other.second);

  offload::StepRunner runner(pool);
  offload::StepTensor clipped = plain.tensor();
  clipped.coefficients = CoefficientsOf(offload::Hyperparameters(), 10, 0.7, 0);
  std::vector<double> squares(1);
  const auto in = offload::HostLane::Create(offload::Direction::kDeviceToHost, 4);
  const auto out = offload::HostLane::Create(offload::Direction::kHostToDevice, 4);
  offload::PipelinedStep chunked(pool, arena, *in.value(), *out.value());
  offload::PipelinedTensor pipelined;
  pipelined.host = plain.tensor();

  const auto step = [&runner](const offload::StepTensor& tensor, std::span<double> sums = {}) {
    return runner.Update(std::span(&tensor, 1), sums);
  };
  std::vector<Contender> contenders = {
      {"plain", [&] { return step(plain.tensor()); }},
      {"clipped", [&] { return step(clipped, squares); }},
      {"mixed", [&] { return step(mixed.tensor()); }},
      {"chunked", [&] { return chunked.Run(std::span(&pipelined, 1), {}, kNoDeadline); }},
  };
  for (std::size_t i = 0; i < small.size(); ++i)
    contenders.push_back({others[i].first, [&, i] { return step(small[i].tensor()); }});
  if (ranks != nullptr) contenders.push_back({"ranks", [&] { return ranks->Step(); }});

  const auto taken = TakeTurns(contenders, options.rounds);
  if (!taken.ok()) return taken.status();
  const auto& seconds = taken.value();
  std::printf(
      "\n%zu threads, %zu Mi parameters, %d rounds\n\n"
      "| time / time | median (half of the rounds) | least | aim | ms |\n|---|---|---|---|---|\n",
      threads, options.elements >> 20, options.rounds);
  PrintRatio("fp32 step / chunked", seconds[0], seconds[3], ">= 0.97");
  PrintRatio("mixed bf16 / fp32 step", seconds[2], seconds[0], "<= 1.05");
  PrintRatio("clip factor, norm, found-inf / without", seconds[1], seconds[0], "<= 1.03");
  for (std::size_t i = 0; i < small.size(); ++i)
    PrintRatio(std::string("fp32 step / ") + others[i].first, seconds[0], seconds[4 + i], "");
  if (ranks != nullptr)
    PrintRatio("fp32 step / " + std::to_string(threads) + " ranks with a part each", seconds[0],
               seconds.back(), ">= 0.95");
  return {};
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const auto value = i + 1 < argc ? ParseBytes(argv[i + 1]) : Result<std::uint64_t>(0);
    if (name == "--elements" && value.ok() && value.value() >= offload::TileSpace::kTile) {
      options.elements = value.value() / offload::TileSpace::kTile * offload::TileSpace::kTile;
    } else if (name == "--rounds" && value.ok() && value.value() >= 1) {
      options.rounds = static_cast<int>(value.value());
    } else {
      std::fprintf(stderr, "tidegate_bench_step [--elements 64M] [--rounds 11]; got %s\n", argv[i]);
      return 2;
    }
  }
  const auto places = PlanThreads(offload::ReadThreadFacts({}, ProcessEnvironment()));
  std::printf("%s, kernels for %s\n", CpuModel().c_str(),
              std::string(NameOfTarget(BestTarget())).c_str());
  // Forked before this process has threads.
  RankProcesses ranks(places, options.elements / places.size());
  for (std::size_t threads = 1; threads <= places.size(); threads *= 2) {
    const bool all = threads == places.size();
    const Status status =
        Measure(options, {places.begin(), places.begin() + static_cast<long>(threads)},
                all && threads > 1 ? &ranks : nullptr);
    if (!status.ok()) {
      std::fprintf(stderr, "tidegate_bench_step: %s\n", status.message().c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace tidegate::bench

// What throws ends the program, and its ranks with it. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return tidegate::bench::Main(argc, argv); }
