#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "collectives/schedule/schedule.h"
#include "collectives/verifier/orbit.h"

namespace tidegate::verifier {

/// Which steps of other ranks each rank knows to be over: vector clocks (Mattern 1989), released by
/// signals and acquired by waits. A rank's vector has entries only for ranks that use a stage that
/// it uses, too; an order that runs through other ranks alone is missed, which can reject a correct
/// schedule but never accept a wrong one.
class Clocks {
 public:
  using Time = std::uint32_t;

  /// `with_all`: entries for all ranks. REQUIRES: then, that no symmetry is used.
  Clocks(Orbit orbit, std::span<const Schedule> schedules, bool with_all);

  /// The representative takes a step; its time.
  Time Tick(int representative) { return ++times_[At(representative)][self_[At(representative)]]; }
  /// Whether the step of `rank` at `when` is over for sure.
  bool Knows(int representative, int rank, Time when) const;

  /// Of all tracked ranks, as the representative knows them.
  const std::vector<Time>& TimesOf(int representative) const { return times_[At(representative)]; }
  /// With all ranks: the time of `rank` in what was saved.
  Time SavedTimeOf(std::size_t saved, int rank) const { return saved_[saved + At(rank)]; }

  /// What the representative knows, for others to acquire.
  std::size_t Save(int representative);
  /// `saved` is what `peer` knew, in the frame of its representative.
  void Acquire(int representative, int peer, std::size_t saved);

 private:
  static std::size_t At(int index) { return static_cast<std::size_t>(index); }
  int IndexOf(int representative, int rank) const;
  const std::vector<std::pair<int, int>>& EntriesShared(int representative, int peer);

  const Orbit orbit_;
  bool has_all_;                           ///< Entry i is that of rank i.
  std::vector<std::vector<int>> tracked_;  ///< By representative: ranks, ascending.
  std::vector<std::vector<Time>> times_;   ///< By representative: of its tracked ranks.
  std::vector<std::size_t> self_;          ///< By representative: its own entry.
  std::vector<Time> saved_;
  /// By (representative, peer): entries of the peer's vector and where they belong.
  std::map<std::pair<int, int>, std::vector<std::pair<int, int>>> shared_;
};

}  // namespace tidegate::verifier
