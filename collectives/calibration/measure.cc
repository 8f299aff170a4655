#include "collectives/calibration/measure.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "common/clock.h"

namespace tidegate {
namespace {

constexpr int kRounds = 5;
constexpr int kMostThreads = 16;
/// Sources and destinations of all threads together: more than caches hold.
constexpr std::size_t kAllBytes = std::size_t{128} << 20;
constexpr std::size_t kMostBytesEach = std::size_t{32} << 20;
constexpr int kPings = 500;
/// Where cores are shared a ping may take a time slice.
constexpr std::chrono::milliseconds kPingBudget(20);

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double SecondsSince(TimePoint start) {
  return std::chrono::duration<double>(SteadyClock().Now() - start).count();
}

/// Bytes that `threads` threads copy in a second, together.
double CopyRate(int threads) {
  const std::size_t half =
      std::min(kMostBytesEach, kAllBytes / static_cast<std::size_t>(threads)) / 2;
  std::barrier all(threads);
  std::vector<double> seconds;
  const auto work = [&](bool first) {
    const std::unique_ptr<std::byte[]> from(new std::byte[half]);
    const std::unique_ptr<std::byte[]> to(new std::byte[half]);
    std::memset(from.get(), 1, half);
    std::memset(to.get(), 2, half);
    for (int round = 0; round < kRounds; ++round) {
      all.arrive_and_wait();
      const TimePoint start = SteadyClock().Now();
      std::memcpy(to.get(), from.get(), half);
      all.arrive_and_wait();
      if (first) seconds.push_back(SecondsSince(start));
    }
  };
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, false);
  work(true);
  others.clear();
  return static_cast<double>(half) * threads / Median(seconds);
}

/// Seconds from a store by one thread until another that waits for it goes on.
double SignalSeconds() {
  alignas(64) std::atomic<int> ping{0};
  alignas(64) std::atomic<int> pong{0};
  constexpr int kStop = -1;
  const auto await = [](const std::atomic<int>& flag, int value) {
    int seen = flag.load(std::memory_order_acquire);
    for (int spins = 0; seen != value && seen != kStop; ++spins) {
      if (spins % 100 == 99) std::this_thread::yield();
      seen = flag.load(std::memory_order_acquire);
    }
    return seen;
  };
  const std::jthread echo([&] {
    for (int count = 1; await(ping, count) != kStop; ++count)
      pong.store(count, std::memory_order_release);
  });
  std::vector<double> seconds;
  const TimePoint end = SteadyClock().Now() + kPingBudget;
  for (int count = 1; count <= kPings && (count < 3 || SteadyClock().Now() < end); ++count) {
    const TimePoint start = SteadyClock().Now();
    ping.store(count, std::memory_order_release);
    await(pong, count);
    seconds.push_back(SecondsSince(start) / 2);
  }
  ping.store(kStop, std::memory_order_release);
  return Median(std::move(seconds));
}

}  // namespace

MachineRates MeasureMachine(int cores, int numa_nodes) {
  const int threads = std::clamp(cores, 1, kMostThreads);
  MachineRates rates;
  rates.copy_Bps = CopyRate(1);
  const double all = threads > 1 ? CopyRate(threads) : rates.copy_Bps;
  // A copy reads as many bytes as it writes.
  rates.memory_Bps = 2 * std::max(all, rates.copy_Bps) / std::max(numa_nodes, 1);
  rates.signal_s = SignalSeconds();
  return rates;
}

}  // namespace tidegate
