#include "bench/collectives/flag_barrier.h"

#include "common/check.h"

namespace tidegate::bench {

FlagBarrier::FlagBarrier(BarrierWords& words, int rank, int ranks, int ranks_per_cpu)
    : words_(words),
      rank_(rank),
      ranks_(ranks),
      wait_(SteadyClock(), LimitsOfRanks(ranks_per_cpu)) {
  TIDEGATE_CHECK(rank >= 0 && rank < ranks && ranks <= kMostRanks);
}

void FlagBarrier::Wait() {
  ++arrivals_;
  // Release: what this rank wrote is seen by whoever acquires the word in HasArrived.
  words_.words[rank_].arrivals.store(arrivals_, std::memory_order_release);
  words_.bell.Ring();
  wait_.Reset();
  for (int other = 0; other < ranks_; ++other)
    AwaitRing(words_.bell, wait_, [&] { return HasArrived(other); });
}

bool FlagBarrier::HasArrived(int rank) const {
  const std::uint32_t seen = words_.words[rank].arrivals.load(std::memory_order_acquire);
  // The difference wraps with the counter; nobody is ever ahead by more than one.
  return static_cast<std::int32_t>(seen - arrivals_) >= 0;
}

}  // namespace tidegate::bench
