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
  TimePoint time = SteadyClock().Now();
  Ticks ticks = NowInTicks();
};

const Moment& Start() {
  static const Moment start;
  return start;
}

/// Made when the library is loaded: the longer ago, the better is the rate known.
[[maybe_unused]] const Moment& at_load = Start();

/// What a moment is off by, some 50 ns, is little of that.
constexpr Nanoseconds kLongEnough = std::chrono::milliseconds(100);

/// Once it is known well it stays, so that equal ticks are equal times.
double NanosecondsEach() {
  static std::atomic<double> known{0.0};
  double each = known.load(std::memory_order_relaxed);
  if (each > 0) return each;
  const Moment now;
  const Nanoseconds passed = now.time - Start().time;
  const Ticks counted = now.ticks - Start().ticks;
  if (counted == 0) return 1.0;
  each = static_cast<double>(passed.count()) / static_cast<double>(counted);
  if (passed >= kLongEnough) known.store(each, std::memory_order_relaxed);
  return each;
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
