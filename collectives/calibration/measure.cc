#include "collectives/calibration/measure.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "collectives/calibration/timing.h"
#include "common/clock.h"
#include "common/machine/machine.h"

namespace tidegate {
namespace {

constexpr int kRounds = 5;
constexpr int kMostThreads = 16;
/// Sources and destinations of all threads together: more than caches hold.
constexpr std::size_t kAllBytes = std::size_t{128} << 20;
constexpr std::size_t kLeastBytes = std::size_t{64} << 10;
constexpr std::size_t kMostBytesEach = std::size_t{32} << 20;
constexpr std::uint64_t kPings = 500;
/// What a rank takes beside the flag's way until it goes on: it looks at whose turn it is, fetches
/// the lines that the next step needs, tells who sleeps. An all-reduce of 4 KiB by two ranks takes
/// that much longer in two hand-overs than in one (`tidegate_bench_node all_reduce --sizes 4K`).
constexpr double kStepSeconds = 7e-7;

/// Bytes that `threads` threads, or as many as can be started, copy in a second, together; 0 where
/// there is no memory for it.
double CopyRate(int threads, const Clock& clock) {
  const std::size_t all_bytes =
      std::min<std::uint64_t>(kAllBytes, AvailableMemory() / kShareOfMemory);
  const std::size_t half =
      std::min(kMostBytesEach, all_bytes / static_cast<std::size_t>(threads)) / 2;
  if (half < kLeastBytes) return 0;
  struct Buffers {
    std::unique_ptr<std::byte[]> from;
    std::unique_ptr<std::byte[]> to;
  };
  std::vector<Buffers> buffers(static_cast<std::size_t>(threads));
  for (Buffers& pair : buffers) {
    pair.from.reset(new (std::nothrow) std::byte[half]);
    pair.to.reset(new (std::nothrow) std::byte[half]);
    if (pair.from == nullptr || pair.to == nullptr) return 0;
  }
  std::optional<std::barrier<>> all;  // Made once it is known how many there are.
  std::atomic<bool> begun{false};
  bool late = false;  // Written before all meet, read after it.
  std::vector<double> seconds;
  seconds.reserve(kRounds);
  TimePoint start;
  const TimePoint end = clock.Now() + kCopyBudget;
  const auto work = [&](int thread) {
    std::byte* const from = buffers[static_cast<std::size_t>(thread)].from.get();
    std::byte* const to = buffers[static_cast<std::size_t>(thread)].to.get();
    begun.wait(false);
    std::memset(from, 1, half);
    std::memset(to, 2, half);
    for (int round = 0; round < kRounds; ++round) {
      if (thread == 0) late = round > 0 && clock.Now() >= end;
      all->arrive_and_wait();
      if (late) return;
      if (thread == 0) start = clock.Now();
      std::memcpy(to, from, half);
      all->arrive_and_wait();
      if (thread == 0) seconds.push_back(SecondsSince(start, clock));
    }
  };
  std::vector<std::jthread> others;
  others.reserve(static_cast<std::size_t>(threads));
  for (int thread = 1; thread < threads; ++thread) {
    try {
      others.emplace_back(work, thread);
    } catch (const std::system_error&) {
      break;  // The limit on threads: those that there are will do.
    }
  }
  const auto running = static_cast<std::ptrdiff_t>(others.size()) + 1;
  all.emplace(running);
  begun = true;
  begun.notify_all();
  work(0);
  others.clear();
  return static_cast<double>(half) * static_cast<double>(running) / Least(seconds);
}

/// Seconds from a store by one thread until another that waits for it goes on; 0 where there can be
/// no other thread, and where others have the processors.
double SignalSeconds(const Clock& clock) {
  alignas(64) std::atomic<std::uint64_t> ping{0};
  alignas(64) std::atomic<std::uint64_t> pong{0};
  constexpr std::uint64_t kStop = ~std::uint64_t{0};
  std::jthread echo;
  try {
    echo = std::jthread([&] {
      for (std::uint64_t count = 1; Await(ping, count) != kStop; ++count)
        pong.store(count, std::memory_order_release);
    });
  } catch (const std::system_error&) {
    return 0;
  }
  std::vector<double> seconds;
  const TimePoint end = clock.Now() + kPingBudget;
  for (std::uint64_t count = 1; count <= kPings && (count < 3 || clock.Now() < end); ++count) {
    const TimePoint start = clock.Now();
    ping.store(count, std::memory_order_release);
    Await(pong, count);
    seconds.push_back(SecondsSince(start, clock) / 2);
  }
  ping.store(kStop, std::memory_order_release);
  const double least = Least(seconds);
  return least + kStepSeconds <= kMostSignalSeconds ? least : 0;
}

}  // namespace

MachineRates MeasureMachine(int cores, int numa_nodes, const Clock& clock) {
  const int threads = std::clamp(cores, 1, kMostThreads);
  MachineRates rates;  // What cannot be measured stays as declared.
  const double one = CopyRate(1, clock);
  if (one > 0) {
    const double all = threads > 1 ? CopyRate(threads, clock) : one;
    rates.copy_Bps = one;
    // A copy reads as many bytes as it writes.
    rates.memory_Bps = 2 * std::max(all, one) / std::max(numa_nodes, 1);
  }
  if (const double signal = SignalSeconds(clock); signal > 0)
    rates.signal_s = signal + kStepSeconds;
  return rates;
}

}  // namespace tidegate
