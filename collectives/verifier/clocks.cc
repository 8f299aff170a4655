#include "collectives/verifier/clocks.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace tidegate::verifier {
namespace {

/// The ranks whose stages `schedule` uses.
std::set<int> OwnersUsedBy(const Schedule& schedule) {
  std::set<int> owners = {schedule.rank};
  const auto add = [&](const Slice& slice) {
    if (slice.buffer == Buffer::kStage) owners.insert(slice.owner);
  };
  for (const Step& step : schedule.steps) {
    if (step.kind == StepKind::kSignal || step.kind == StepKind::kWait) continue;
    add(step.dst);
    if (step.kind != StepKind::kReduce) add(step.src);
  }
  for (const Operand& operand : schedule.operands) add(operand.slice);
  return owners;
}

}  // namespace

Clocks::Clocks(Orbit orbit, std::span<const Schedule> schedules, bool with_all)
    : orbit_(orbit), has_all_(with_all) {
  const auto count = At(orbit_.representatives());
  tracked_.resize(count);
  if (has_all_) {
    for (std::vector<int>& tracked : tracked_) {
      tracked.resize(count);
      std::iota(tracked.begin(), tracked.end(), 0);
    }
  } else {
    std::vector<std::set<int>> owners(count);
    std::vector<std::set<int>> users(count);  // Of the stages of the representatives.
    for (std::size_t i = 0; i < count; ++i) {
      owners[i] = OwnersUsedBy(schedules[i]);
      for (const int owner : owners[i])
        users[At(orbit_.RepresentativeOf(owner))].insert(
            orbit_.Back(static_cast<int>(i), orbit_.ShiftOf(owner)));
    }
    for (std::size_t i = 0; i < count; ++i) {
      std::set<int> tracked;
      for (const int owner : owners[i])
        for (const int user : users[At(orbit_.RepresentativeOf(owner))])
          tracked.insert(orbit_.Forward(user, orbit_.ShiftOf(owner)));
      tracked_[i].assign(tracked.begin(), tracked.end());
    }
    has_all_ = orbit_.is_trivial() &&
               std::all_of(tracked_.begin(), tracked_.end(), [&](const std::vector<int>& tracked) {
                 return tracked.size() == count;
               });
  }
  for (std::size_t i = 0; i < count; ++i) {
    times_.emplace_back(tracked_[i].size(), 0);
    self_.push_back(At(IndexOf(static_cast<int>(i), static_cast<int>(i))));
  }
}

int Clocks::IndexOf(int representative, int rank) const {
  if (has_all_) return rank;
  const std::vector<int>& tracked = tracked_[At(representative)];
  const auto found = std::lower_bound(tracked.begin(), tracked.end(), rank);
  if (found == tracked.end() || *found != rank) return -1;
  return static_cast<int>(found - tracked.begin());
}

bool Clocks::Knows(int representative, int rank, Time when) const {
  const int index = IndexOf(representative, rank);
  return index >= 0 && times_[At(representative)][At(index)] >= when;
}

std::size_t Clocks::Save(int representative) {
  const std::vector<Time>& times = times_[At(representative)];
  saved_.insert(saved_.end(), times.begin(), times.end());
  return saved_.size() - times.size();
}

const std::vector<std::pair<int, int>>& Clocks::EntriesShared(int representative, int peer) {
  const auto [entry, is_new] = shared_.try_emplace({representative, peer});
  if (is_new) {
    const std::vector<int>& theirs = tracked_[At(orbit_.RepresentativeOf(peer))];
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      const int rank = orbit_.Forward(theirs[i], orbit_.ShiftOf(peer));
      const int index = IndexOf(representative, rank);
      if (index >= 0) entry->second.emplace_back(static_cast<int>(i), index);
    }
  }
  return entry->second;
}

void Clocks::Acquire(int representative, int peer, std::size_t saved) {
  std::vector<Time>& times = times_[At(representative)];
  const Time* const theirs = saved_.data() + saved;
  if (has_all_) {
    for (std::size_t i = 0; i < times.size(); ++i) times[i] = std::max(times[i], theirs[i]);
    return;
  }
  for (const auto& [from, to] : EntriesShared(representative, peer))
    times[At(to)] = std::max(times[At(to)], theirs[from]);
}

}  // namespace tidegate::verifier
