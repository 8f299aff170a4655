#pragma once

#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace tidegate {

/// Sleeps while `word` holds `expected`, at most until `deadline` (kNoDeadline: forever). Returns
/// early on wake-ups, signals and spuriously; the caller re-checks its condition. `word` may lie in
/// memory shared between processes.
void FutexWait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, TimePoint deadline);

/// Wakes every thread of every process that sleeps on `word`.
void FutexWakeAll(const std::atomic<std::uint32_t>& word);

}  // namespace tidegate
