#pragma once

#include <cstdint>

#include "common/clock.h"

namespace tidegate {

/// A counter that grows at a constant rate: the processor's own where it has one, which takes a
/// third of the time of a clock to read. For durations that are measured at every call, summed up,
/// and now and then told in seconds; nothing may depend on one, for counters of two sockets need
/// not agree. May run a few parts in a million faster or slower than the clock, and otherwise than
/// that while the machine is suspended.
using Ticks = std::uint64_t;

/// Thread-safe, as the next. Not in order with loads and stores: a few nanoseconds early or late.
Ticks NowInTicks();

/// How long so many ticks take, by the clock: the same for the same ticks 0.1 s after the library
/// was loaded. Thread-safe.
Nanoseconds DurationOf(Ticks ticks);

/// From `begin` to now; 0 where that lies in the future, as far as this processor knows.
Ticks TicksSince(Ticks begin);

}  // namespace tidegate
