#include "common/ticks.h"

#include <algorithm>
#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace tidegate {
namespace {

#if defined(__x86_64__)

/// Whether the counter neither stops nor changes its rate: "invariant TSC" of CPUID's leaf of power
/// management (Intel SDM volume 3, 18.17.1; AMD APM volume 3, E.4.6).
bool IsInvariant() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d >> 8 & 1U) != 0;
}

bool OfProcessor() {
  static const bool is_invariant = IsInvariant();
  return is_invariant;
}

Ticks ReadProcessor() { return __rdtsc(); }

#elif defined(__aarch64__)

constexpr bool OfProcessor() { return true; }

Ticks ReadProcessor() {
  Ticks ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
}

#else

constexpr bool OfProcessor() { return false; }
Ticks ReadProcessor() { return 0; }

#endif

/// One moment, by both.
struct Moment {
  TimePoint time;
  Ticks ticks;
};

/// The closest of some, since this thread may lose its processor between two readings.
Moment NowByBoth() {
  Moment closest{};
  Nanoseconds least = Nanoseconds::max();
  static_cast<void>(NowInTicks());  // The first one takes longer.
  for (int i = 0; i < 5; ++i) {
    const TimePoint before = SteadyClock().Now();
    const Ticks ticks = NowInTicks();
    const TimePoint after = SteadyClock().Now();
    if (after - before >= least) continue;
    least = after - before;
    closest = {before + least / 2, ticks};
  }
  return closest;
}

const Moment& Start() {
  static const Moment start = NowByBoth();
  return start;
}

/// Made when the library is loaded: the longer ago, the better is the rate known.
[[maybe_unused]] const Moment& at_load = Start();

/// What a moment is off by, some 50 ns, is little of that.
constexpr Nanoseconds kLongEnough = std::chrono::milliseconds(100);

/// Of counters of processors, which have 10 MHz to some GHz. Others are none of this start's: of a
/// counter that began anew, or went on while the clock stood still.
constexpr double kLeastEach = 0.05;
constexpr double kMostEach = 1000;

/// Once it is known well it stays, so that equal ticks are equal times.
double NanosecondsEach() {
  static std::atomic<double> known{0.0};
  double kept = known.load(std::memory_order_relaxed);
  if (kept > 0) return kept;
  const Moment now = NowByBoth();
  const Nanoseconds passed = now.time - Start().time;
  const Ticks counted = now.ticks - Start().ticks;
  if (counted == 0) return 1.0;
  const double each = static_cast<double>(passed.count()) / static_cast<double>(counted);
  if (each < kLeastEach || each > kMostEach) return 1.0;
  if (passed < kLongEnough) return each;
  return known.compare_exchange_strong(kept, each, std::memory_order_relaxed) ? each : kept;
}

}  // namespace

Ticks NowInTicks() {
  if (OfProcessor()) return ReadProcessor();
  return static_cast<Ticks>(SteadyClock().Now().time_since_epoch().count());
}

Nanoseconds DurationOf(Ticks ticks) {
  return Nanoseconds(static_cast<std::int64_t>(static_cast<double>(ticks) * NanosecondsEach()));
}

Ticks TicksSince(Ticks begin) {
  const Ticks now = NowInTicks();
  return now - std::min(begin, now);
}

}  // namespace tidegate
