#include "collectives/calibration/measure_paths.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "collectives/calibration/timing.h"
#include "collectives/kernels/copy.h"
#include "common/clock.h"
#include "common/machine/machine.h"

namespace tidegate {
namespace {

constexpr int kRounds = 9;
constexpr int kLeastRounds = 3;
constexpr std::size_t kChunks[] = {64 << 10, 128 << 10, 256 << 10, 512 << 10};
constexpr std::size_t kLongestChunk = std::size_t{512} << 10;
/// Sizes of the output at which plain and streaming stores are compared, and the one at which
/// chunks are.
constexpr std::size_t kSizes[] = {2 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20};
constexpr std::size_t kSizeForChunks = std::size_t{16} << 20;
/// All tensors of both threads take three times the output. Half way, as factors go, from the last
/// size that is better off in the caches to the first that is not, which is twice as long, that is
/// twice this one.
constexpr std::size_t kBytesOfAllPerSize = 2;
constexpr std::size_t kLongest = std::size_t{32} << 20;
/// As in the stages of a group (collectives/schedule/schedule.h).
constexpr int kSlots = 4;
constexpr int kChunksInFlight = 2;
constexpr std::size_t kStageBytes = kSlots * kLongestChunk;
/// Two inputs, outputs and stages.
constexpr std::size_t kAllBytes = 2 * (kLongest / 2 + kLongest + kStageBytes);
/// Blocks that are read in one copy, which are as long as chunks of such calls.
constexpr std::size_t kSingleCopyBytes = kLongestChunk;
/// A single copy must take this much less than two.
constexpr double kSingleCopyGain = 0.9;
/// Of the declared time that another choice must save.
constexpr double kWorthwhile = 0.03;

struct Trial {
  std::size_t bytes;
  std::size_t chunk;
  bool streams;
  std::vector<double> seconds = {};
};

/// Memory and progress of one of the two threads.
struct Side {
  std::unique_ptr<std::byte[]> input;
  std::unique_ptr<std::byte[]> output;
  std::unique_ptr<std::byte[]> stage;
  alignas(64) std::atomic<std::uint64_t> staged{0};
  alignas(64) std::atomic<std::uint64_t> read{0};
  alignas(64) std::atomic<std::uint64_t> met{0};

  bool Allocate() {
    input.reset(new (std::nothrow) std::byte[kLongest / 2]);
    output.reset(new (std::nothrow) std::byte[kLongest]);
    stage.reset(new (std::nothrow) std::byte[kStageBytes]);
    if (input == nullptr || output == nullptr || stage == nullptr) return false;
    std::memset(input.get(), 1, kLongest / 2);
    std::memset(output.get(), 2, kLongest);
    std::memset(stage.get(), 3, kStageBytes);
    return true;
  }
};

/// One all-gather of two ranks as `mine` sees it; `count` goes up by one a chunk.
void Exchange(const Trial& trial, Side& mine, Side& other, bool is_first, std::uint64_t& count) {
  const std::size_t half = trial.bytes / 2;
  std::byte* const own = mine.output.get() + (is_first ? 0 : half);
  std::byte* const others = mine.output.get() + (is_first ? half : 0);
  const auto write = [&](std::byte* to, const std::byte* from, std::size_t bytes) {
    if (trial.streams) {
      StreamingCopy(to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  };
  for (std::size_t at = 0; at < half; at += trial.chunk) {
    const std::size_t bytes = std::min(trial.chunk, half - at);
    const std::size_t slot = count % kSlots * kLongestChunk;
    if (count >= kChunksInFlight) Await(other.read, count - kChunksInFlight + 1);
    std::memcpy(mine.stage.get() + slot, mine.input.get() + at, bytes);
    ++count;
    mine.staged.store(count, std::memory_order_release);
    write(own + at, mine.input.get() + at, bytes);
    Await(other.staged, count);
    write(others + at, other.stage.get() + slot, bytes);
    mine.read.store(count, std::memory_order_release);
  }
}

/// Both threads are here for the `number`th time.
void Meet(Side& mine, const Side& other, std::uint64_t number) {
  mine.met.store(number, std::memory_order_release);
  Await(other.met, number);
}

/// As a rank reads another's; false where the kernel does not allow that.
bool ReadOwnMemory(std::byte* to, std::byte* from, std::size_t bytes) {
  const iovec local{to, bytes};
  const iovec remote{from, bytes};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
}

/// Fills in the seconds of all trials; false where there is no second thread or no memory, or they
/// take too long: then they would tell nothing.
bool Run(std::span<Trial> trials, const Clock& clock) {
  if (AvailableMemory() / kShareOfMemory < kAllBytes) return false;
  const TimePoint end = clock.Now() + kPathBudget;
  Side sides[2];
  if (!sides[0].Allocate() || !sides[1].Allocate()) return false;
  std::uint64_t meetings[2] = {};
  std::atomic<bool> late{false};  // Written before a meeting, read after it.
  const auto work = [&](int number) {
    std::uint64_t count = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (Trial& trial : trials) {
        if (number == 0) late.store(clock.Now() >= end, std::memory_order_relaxed);
        Meet(sides[number], sides[1 - number], ++meetings[number]);
        if (late.load(std::memory_order_relaxed)) return;
        const TimePoint start = number == 0 ? clock.Now() : TimePoint();
        Exchange(trial, sides[number], sides[1 - number], number == 0, count);
        if (number == 0) trial.seconds.push_back(SecondsSince(start, clock));
      }
    }
  };
  try {
    const std::jthread second(work, 1);
    work(0);
  } catch (const std::system_error&) {
    return false;
  }
  return trials.back().seconds.size() >= kLeastRounds;
}

/// The chunk with which the better kind of store takes least.
std::size_t BestChunk(std::size_t declared, const Clock& clock) {
  std::vector<Trial> trials;
  for (const std::size_t chunk : kChunks)
    for (const bool streams : {false, true}) trials.push_back({kSizeForChunks, chunk, streams});
  if (!Run(trials, clock)) return declared;
  const auto seconds_of = [&](std::size_t chunk) {
    double least = 1e9;
    for (const Trial& trial : trials)
      if (trial.chunk == chunk) least = std::min(least, Least(trial.seconds));
    return least;
  };
  const std::size_t best = *std::ranges::min_element(kChunks, {}, seconds_of);
  return seconds_of(best) < (1 - kWorthwhile) * seconds_of(declared) ? best : declared;
}

/// `trials`: of each size, ascending, one as below the cut and one as above it. How many sizes
/// should lie below, so that all together take least, `declared` unless that costs at least
/// kWorthwhile for each size in between: one size that was disturbed does not decide.
std::size_t BestCut(const std::vector<Trial>& trials, std::size_t declared) {
  const std::size_t sizes = trials.size() / 2;
  std::size_t best = declared;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t cut = 0; cut <= sizes; ++cut) {
    const std::size_t moved = cut > declared ? cut - declared : declared - cut;
    double cost = kWorthwhile * static_cast<double>(moved);
    for (std::size_t i = 0; i < sizes; ++i)
      cost += std::log(Least(trials[2 * i + (i < cut ? 0 : 1)].seconds));
    if (cost < least) {
      least = cost;
      best = cut;
    }
  }
  return best;
}

/// Whether a rank that finds its peer's tensor freshly written should have the kernel copy it from
/// there, rather than copy its own into a stage and the peer's out of one. One thread reads at a
/// time: two of one process get into each other's way in the kernel, as ranks do not.
bool SingleCopiesPay(const Clock& clock) {
  if (AvailableMemory() / kShareOfMemory < 4 * kStageBytes) return false;
  const auto make = [](std::size_t bytes) {
    std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
    if (memory != nullptr) std::memset(memory.get(), 1, bytes);
    return memory;
  };
  const auto tensor = make(kSingleCopyBytes);
  const auto output = make(kSingleCopyBytes);
  const auto stage = make(kStageBytes);
  if (tensor == nullptr || output == nullptr || stage == nullptr) return false;
  const TimePoint end = clock.Now() + kSingleCopyBudget;
  std::atomic<std::uint64_t> asked{0};
  std::atomic<std::uint64_t> written{0};
  constexpr std::uint64_t kStop = ~std::uint64_t{0};
  // Every other turn goes through the stage.
  const auto is_once = [](std::uint64_t turn) { return turn % 2 == 0; };
  const auto slot_of = [&](std::uint64_t turn) {
    return stage.get() + turn / 2 % kSlots * kLongestChunk;
  };
  std::vector<double> staging;
  std::vector<double> copying_out;
  std::vector<double> copying_once;
  for (std::vector<double>* const seconds : {&staging, &copying_out, &copying_once})
    seconds->reserve(std::size_t{2} * kRounds);
  const auto owner = [&] {
    for (std::uint64_t turn = 1; Await(asked, turn) != kStop; ++turn) {
      std::memset(tensor.get(), static_cast<int>(turn), kSingleCopyBytes);
      if (!is_once(turn)) {
        const TimePoint start = clock.Now();
        std::memcpy(slot_of(turn), tensor.get(), kSingleCopyBytes);
        staging.push_back(SecondsSince(start, clock));
      }
      written.store(turn, std::memory_order_release);
    }
  };
  bool readable = true;
  try {
    const std::jthread other(owner);
    std::uint64_t turn = 0;
    while (turn < std::uint64_t{2} * kRounds && readable && clock.Now() < end) {
      asked.store(++turn, std::memory_order_release);
      Await(written, turn);
      const TimePoint start = clock.Now();
      if (is_once(turn)) {
        readable = ReadOwnMemory(output.get(), tensor.get(), kSingleCopyBytes);
      } else {
        std::memcpy(output.get(), slot_of(turn), kSingleCopyBytes);
      }
      (is_once(turn) ? copying_once : copying_out).push_back(SecondsSince(start, clock));
    }
    asked.store(kStop, std::memory_order_release);
  } catch (const std::system_error&) {
    return false;
  }
  if (!readable || copying_once.size() < kLeastRounds) return false;
  return Least(copying_once) < kSingleCopyGain * (Least(staging) + Least(copying_out));
}

/// The bytes on all ranks together from which on streaming stores are better.
std::size_t Crossover(std::size_t chunk, std::size_t declared, const Clock& clock) {
  std::vector<Trial> trials;
  for (const std::size_t bytes : kSizes)
    for (const bool streams : {false, true}) trials.push_back({bytes, chunk, streams});
  if (!Run(trials, clock)) return declared;
  const auto below = std::ranges::count_if(
      kSizes, [&](std::size_t size) { return kBytesOfAllPerSize * size < declared; });
  const std::size_t cut = BestCut(trials, static_cast<std::size_t>(below));
  return kBytesOfAllPerSize * (cut == std::size(kSizes) ? 2 * kLongest : kSizes[cut]);
}

}  // namespace

DataPaths MeasureDataPaths(int cores, const Clock& clock) {
  DataPaths paths;
  if (cores < 2) return paths;
  paths.chunk_bytes = BestChunk(paths.chunk_bytes, clock);
  paths.stream_bytes = Crossover(paths.chunk_bytes, paths.stream_bytes, clock);
  if (SingleCopiesPay(clock)) paths.single_copy_bytes = kMostSingleCopyBytes;
  return paths;
}

}  // namespace tidegate
