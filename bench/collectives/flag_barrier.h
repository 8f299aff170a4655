#pragma once

#include <atomic>
#include <cstdint>

#include "collectives/executor/adaptive_wait.h"
#include "common/clock.h"
#include "common/ipc/doorbell.h"

namespace tidegate::bench {

inline constexpr int kMostRanks = 64;

/// The shared part of a barrier: a word a rank on lines of its own. Zero-filled memory is valid.
struct BarrierWords {
  struct alignas(128) Word {
    std::atomic<std::uint32_t> arrivals;
  };
  Word words[kMostRanks];
  alignas(128) Doorbell bell;
};

/// Waits as adaptively as the executor does until `reached()`, of which `bell` is rung.
/// REQUIRES: wait.Reset() since the last progress.
template <typename Reached>
void AwaitRing(Doorbell& bell, AdaptiveWait& wait, const Reached& reached) {
  // Longest sleep of a rank that nobody wakes: a ring can be missed only by a bug.
  constexpr Nanoseconds kSleep = std::chrono::milliseconds(100);
  while (!reached()) {
    if (wait.PollAgain()) continue;
    const std::uint32_t ticket = bell.Arm();
    if (reached()) {
      bell.Disarm();
      return;
    }
    bell.Sleep(ticket, SteadyClock().Now() + kSleep);
  }
}

/// The least that ranks can do to meet: each counts its arrivals in its own word and waits for the
/// words of all others, as adaptively as the executor does. One object a rank and thread.
class FlagBarrier {
 public:
  /// `words` must outlive the barrier. `ranks_per_cpu`: see LimitsOfRanks.
  FlagBarrier(BarrierWords& words, int rank, int ranks, int ranks_per_cpu);

  void Wait();

 private:
  bool HasArrived(int rank) const;

  BarrierWords& words_;
  const int rank_;
  const int ranks_;
  AdaptiveWait wait_;
  std::uint32_t arrivals_ = 0;
};

}  // namespace tidegate::bench
