// What the arena's memory costs to have and to give back: pages of each kind, pinned or not, and
// blocks whose pages are there.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "offload/memory/arena.h"

namespace tidegate::offload {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;

std::shared_ptr<Arena> MakeArena(PageChoice pages, Pinning pinning) {
  auto segment = NodeSegment::Create({.slice_bytes = 4 * kBytes, .pages = pages});
  if (!segment.ok()) return nullptr;
  ArenaOptions options;
  options.pinning = pinning;
  auto arena = Arena::Create(std::move(segment).value(), 0, std::move(options));
  return arena.ok() ? std::move(arena).value() : nullptr;
}

/// One block of 256 MiB, from no pages to no pages.
void FreshBlock(benchmark::State& state, PageChoice pages, PageKind kind, Pinning pinning) {
  const auto arena = MakeArena(pages, pinning);
  if (arena == nullptr || arena->Stats().pages != kind) {
    state.SkipWithError("no such pages here");
    return;
  }
  for (auto _ : state) {
    const Result<std::byte*> block = arena->Allocate(kBytes);
    const bool pinned = arena->Stats().pinned_bytes == kBytes;
    if (!block.ok() || pinned != (pinning != Pinning::kOff) || !arena->Free(block.value()).ok() ||
        !arena->Trim().ok()) {
      state.SkipWithError("no memory, or not as much may be locked");
      return;
    }
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * kBytes));
}

/// 1,000 blocks of 16 Ki floats, as the states of many small tensors: taken and freed.
void ManyBlocks(benchmark::State& state, bool reserved) {
  constexpr std::size_t kBlocks = 1000;
  constexpr std::size_t kBlockBytes = 16384 * sizeof(float);
  const auto arena = MakeArena(PageChoice::kNoHugePool, Pinning::kOff);
  std::vector<std::byte*> blocks(kBlocks);
  for (auto _ : state) {
    if (reserved && !arena->Reserve(kBlocks * Arena::Footprint(kBlockBytes)).ok()) return;
    for (std::byte*& block : blocks) block = arena->Allocate(kBlockBytes).value();
    for (std::byte* const block : blocks) benchmark::DoNotOptimize(arena->Free(block).ok());
    benchmark::DoNotOptimize(arena->Trim().ok());
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * kBlocks));
}

// What throws ends the program. NOLINTNEXTLINE(bugprone-throwing-static-initialization)
[[maybe_unused]] const bool kRegistered = [] {
  struct Kind {
    const char* name;
    PageChoice choice;
    PageKind kind;
  };
  for (const Kind& each : {Kind{"small", PageChoice::kSmall, PageKind::kSmall},
                           Kind{"transparent", PageChoice::kNoHugePool, PageKind::kTransparent},
                           Kind{"huge_pool", PageChoice::kHugePool, PageKind::kHugePool}})
    for (const Pinning pinning : {Pinning::kOff, Pinning::kWanted})
      benchmark::RegisterBenchmark(
          ("arena/fresh/256M/" + std::string(each.name) +
           (pinning == Pinning::kOff ? "" : "/locked"))
              .c_str(),
          [=](benchmark::State& state) { FreshBlock(state, each.choice, each.kind, pinning); })
          ->UseRealTime();
  for (const bool reserved : {false, true})
    benchmark::RegisterBenchmark(
        reserved ? "arena/blocks/64K/reserved" : "arena/blocks/64K/one_by_one",
        [=](benchmark::State& state) { ManyBlocks(state, reserved); })
        ->UseRealTime();
  return true;
}();

}  // namespace
}  // namespace tidegate::offload
