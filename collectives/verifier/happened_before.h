#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "collectives/verifier/orbit.h"

namespace tidegate::verifier {

/// Which steps of other ranks each rank knows to be over (Lamport 1978). Kept is only what each
/// wait was told by the rank that it waited for; what that one knew by others is looked for when it
/// is asked. So memory grows with the waits alone, however many ranks have to do with each other,
/// where vector clocks would keep the time of every one of them with every signal.
class HappenedBefore {
 public:
  using Time = std::uint32_t;

  explicit HappenedBefore(Orbit orbit);

  /// The representative takes a step; its time, from 1.
  Time Tick(int representative) { return ++now_[At(representative)]; }
  /// The representative has waited for what `peer` did up to its time `when`.
  void Acquire(int representative, int peer, Time when);

  // Whether the step of `rank` at `when` is over for sure, as the representative knows ...

  /// ... from that rank itself: O(1).
  bool KnowsDirectly(int representative, int rank, Time when) const;
  /// ... from rank `by`, which knew it from that rank itself: O(log of the waits for it).
  bool KnowsBy(int representative, int by, int rank, Time when) const;
  /// ... from whomever, by however many others: O(waits of the group), so to be asked last.
  bool Knows(int representative, int rank, Time when) const;

 private:
  /// Up to when the steps of the other are known to be over by steps after `mine`; both ascend.
  struct Told {
    Time mine;
    Time theirs;
  };
  using ToldBy = std::unordered_map<int, std::vector<Told>>;

  static std::size_t At(int index) { return static_cast<std::size_t>(index); }
  /// What `rank`, before its time `when`, was told by `peer`; 0 for nothing.
  Time TimeTold(int rank, Time when, int peer) const;

  const Orbit orbit_;
  // By representative:
  std::vector<Time> now_;
  std::vector<ToldBy> told_;  ///< By peer.
};

}  // namespace tidegate::verifier
