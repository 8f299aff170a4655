#include "collectives/verifier/clocks.h"

#include <algorithm>

namespace tidegate::verifier {

std::size_t Clocks::Save(int rank) {
  const std::vector<Time>& times = times_[At(rank)];
  saved_.insert(saved_.end(), times.begin(), times.end());
  return saved_.size() - times.size();
}

void Clocks::Acquire(int rank, std::size_t saved) {
  std::vector<Time>& times = times_[At(rank)];
  for (std::size_t i = 0; i < times.size(); ++i) times[i] = std::max(times[i], saved_[saved + i]);
}

}  // namespace tidegate::verifier
