#pragma once

#include <cstddef>
#include <vector>

#include "collectives/verifier/happened_before.h"

namespace tidegate::verifier {

/// Vector clocks of all ranks (Mattern 1989), released by signals and acquired by waits: what tells
/// which of several waits at once are implied by the others. For few ranks, without symmetry.
class Clocks {
 public:
  using Time = HappenedBefore::Time;

  explicit Clocks(int ranks) : times_(At(ranks), std::vector<Time>(At(ranks), 0)) {}

  void SetOwn(int rank, Time now) { times_[At(rank)][At(rank)] = now; }
  /// Of all ranks, as `rank` knows them.
  const std::vector<Time>& TimesOf(int rank) const { return times_[At(rank)]; }

  /// What `rank` knows, for others to acquire.
  std::size_t Save(int rank);
  void Acquire(int rank, std::size_t saved);
  /// The time of `rank` in what was saved.
  Time SavedTimeOf(std::size_t saved, int rank) const { return saved_[saved + At(rank)]; }

 private:
  static std::size_t At(int index) { return static_cast<std::size_t>(index); }

  std::vector<std::vector<Time>> times_;  ///< By rank.
  std::vector<Time> saved_;
};

}  // namespace tidegate::verifier
