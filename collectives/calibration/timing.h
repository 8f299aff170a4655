#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/clock.h"

namespace tidegate {

// What the measurements of this folder have in common.

/// One may take this part of the memory that is free.
inline constexpr std::uint64_t kShareOfMemory = 8;

/// How long the first operation of a group may wait for all of it.
inline constexpr Nanoseconds kMostCalibrationTime = std::chrono::seconds(2);

/// A signal through memory that takes longer has waited for a time slice, which says nothing about
/// the machine: sockets are a hundredth of that apart.
inline constexpr double kMostSignalSeconds = 5e-5;

// Where processors are shared a measurement may take many time slices: none begins after these, but
// for the least that tells anything.
inline constexpr Nanoseconds kCopyBudget = std::chrono::milliseconds(100);  ///< One core, and all.
inline constexpr Nanoseconds kPingBudget = std::chrono::milliseconds(20);
inline constexpr Nanoseconds kPathBudget = std::chrono::milliseconds(400);  ///< Each of two.
inline constexpr Nanoseconds kSingleCopyBudget = std::chrono::milliseconds(50);
static_assert(2 * kCopyBudget + kPingBudget + 2 * kPathBudget + kSingleCopyBudget <=
              kMostCalibrationTime * 3 / 4);

/// What counts of several rounds: whatever else runs on the machine only makes them longer.
/// REQUIRES: rounds.
inline double Least(const std::vector<double>& rounds) { return *std::ranges::min_element(rounds); }

inline double SecondsSince(TimePoint start, const Clock& clock) {
  return std::chrono::duration<double>(clock.Now() - start).count();
}

/// Returns what it finds once `word` is at least `value`. Gives the processor up now and then, for
/// there may be no other for whoever writes the word.
inline std::uint64_t Await(const std::atomic<std::uint64_t>& word, std::uint64_t value) {
  for (int spins = 0;; ++spins) {
    const std::uint64_t seen = word.load(std::memory_order_acquire);
    if (seen >= value) return seen;
    if (spins % 100 == 99) std::this_thread::yield();
  }
}

}  // namespace tidegate
