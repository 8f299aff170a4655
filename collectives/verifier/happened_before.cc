#include "collectives/verifier/happened_before.h"

#include <algorithm>
#include <deque>
#include <limits>

namespace tidegate::verifier {

HappenedBefore::HappenedBefore(Orbit orbit)
    : orbit_(orbit), now_(At(orbit.representatives()), 0), told_(At(orbit.representatives())) {}

void HappenedBefore::Acquire(int representative, int peer, Time when) {
  std::vector<Told>& told = told_[At(representative)][peer];
  if (!told.empty() && told.back().theirs >= when) return;
  const Time mine = now_[At(representative)];
  if (!told.empty() && told.back().mine == mine)
    told.back().theirs = when;
  else
    told.push_back({mine, when});
}

bool HappenedBefore::KnowsDirectly(int representative, int rank, Time when) const {
  const ToldBy& by = told_[At(representative)];
  const auto found = by.find(rank);
  return found != by.end() && found->second.back().theirs >= when;
}

bool HappenedBefore::KnowsBy(int representative, int by, int rank, Time when) const {
  const ToldBy& peers = told_[At(representative)];
  const auto found = peers.find(by);
  return found != peers.end() && TimeTold(by, found->second.back().theirs, rank) >= when;
}

HappenedBefore::Time HappenedBefore::TimeTold(int rank, Time when, int peer) const {
  const ToldBy& by = told_[At(orbit_.RepresentativeOf(rank))];
  const auto found = by.find(orbit_.Back(peer, orbit_.ShiftOf(rank)));
  if (found == by.end()) return 0;
  const std::vector<Told>& told = found->second;
  const auto later = std::lower_bound(told.begin(), told.end(), when,
                                      [](const Told& one, Time time) { return one.mine < time; });
  return later == told.begin() ? 0 : (later - 1)->theirs;
}

bool HappenedBefore::Knows(int representative, int rank, Time when) const {
  // From whom to whom, backwards: up to when each rank's steps are known to be over.
  std::unordered_map<int, Time> known;
  std::deque<int> to_ask = {representative};
  known[representative] = std::numeric_limits<Time>::max();
  for (; !to_ask.empty(); to_ask.pop_front()) {
    const int asked = to_ask.front();
    const Time until = known[asked];
    const int by = orbit_.ShiftOf(asked);
    for (const auto& entry : told_[At(orbit_.RepresentativeOf(asked))]) {
      const int peer = orbit_.Forward(entry.first, by);
      const Time told = TimeTold(asked, until, peer);
      Time& best = known[peer];
      if (told <= best) continue;
      best = told;
      if (peer == rank && told >= when) return true;
      to_ask.push_back(peer);
    }
  }
  return false;
}

}  // namespace tidegate::verifier
