#include "collectives/simulator/fair_share.h"

#include <algorithm>
#include <functional>

#include "common/check.h"

namespace tidegate {
namespace {

/// Rates and sums that differ by less, relatively, are equal: what rounding makes of equals.
constexpr double kTolerance = 1e-12;
/// A rate that moves by less is left as it is, which spares its completion a new date.
constexpr double kNoChange = 1e-15;

}  // namespace

FairShare::FairShare(std::vector<double> capacities) : resources_(capacities.size()) {
  for (std::size_t i = 0; i < capacities.size(); ++i) resources_[i].capacity = capacities[i];
}

int FairShare::Add(std::span<const Use> uses) {
  TIDEGATE_CHECK(!uses.empty());
  if (unused_.empty()) {
    unused_.push_back(static_cast<std::int32_t>(flows_.size()));
    flows_.emplace_back();
  }
  const std::int32_t id = unused_.back();
  unused_.pop_back();
  Flow& added = flow(id);
  added.uses = uses;
  added.positions.resize(uses.size());
  added.rate = 0;
  added.bottleneck = -1;
  added.chosen = 0;
  added.is_live = true;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    std::vector<Entry>& entries = resource(uses[i].resource).entries;
    added.positions[i] = static_cast<std::int32_t>(entries.size());
    entries.push_back({id, static_cast<std::int32_t>(i)});
  }
  added_.push_back(id);
  return id;
}

void FairShare::Remove(int id) {
  Flow& removed = flow(id);
  for (std::size_t i = 0; i < removed.uses.size(); ++i) {
    std::vector<Entry>& entries = resource(removed.uses[i].resource).entries;
    const auto position = static_cast<std::size_t>(removed.positions[i]);
    entries[position] = entries.back();
    flow(entries[position].flow).positions[static_cast<std::size_t>(entries[position].use)] =
        static_cast<std::int32_t>(position);
    entries.pop_back();
    freed_.push_back(removed.uses[i].resource);
  }
  removed.is_live = false;
  unused_.push_back(id);
}

void FairShare::Choose(int id) {
  Flow& chosen = flow(id);
  if (chosen.chosen == round_) return;
  chosen.chosen = round_;
  chosen.new_rate = chosen.rate;
  chosen_.push_back(id);
}

void FairShare::Solve(std::vector<int>* changed) {
  ++round_;
  chosen_.clear();
  for (const std::int32_t id : added_)
    if (flow(id).is_live) Choose(id);
  for (const std::int32_t freed : freed_)
    for (const Entry& entry : resource(freed).entries)
      if (flow(entry.flow).bottleneck == freed) Choose(entry.flow);
  added_.clear();
  freed_.clear();
  do {
    Touch();
    Fill();
  } while (ChooseWhoseConditionFails());
  for (const std::int32_t id : chosen_) {
    Flow& solved = flow(id);
    const double change = solved.new_rate - solved.rate;
    if (change <= kNoChange * solved.rate && -change <= kNoChange * solved.rate) continue;
    solved.rate = solved.new_rate;
    changed->push_back(id);
  }
}

/// What the flows that keep their rates leave to the chosen ones.
void FairShare::Touch() {
  ++touch_;
  touched_.clear();
  for (const std::int32_t id : chosen_) {
    flow(id).is_fixed = false;
    for (const Use& use : flow(id).uses) {
      Resource& touched = resource(use.resource);
      if (touched.touched == touch_) continue;
      touched.touched = touch_;
      touched_.push_back(use.resource);
      touched.left = touched.capacity;
      touched.weight = touched.level = 0;
      touched.open = 0;
      for (const Entry& entry : touched.entries) {
        const Flow& user = flow(entry.flow);
        const double weight = user.uses[static_cast<std::size_t>(entry.use)].weight;
        if (user.chosen == round_) {
          touched.weight += weight;
          ++touched.open;
        } else {
          touched.left -= weight * user.rate;
        }
      }
    }
  }
}

/// Progressive filling: the resource that gives its open flows least fixes them at that.
void FairShare::Fill() {
  heap_.clear();
  for (const std::int32_t id : touched_) heap_.emplace_back(resource(id).share(), id);
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto [share, id] = heap_.back();
    heap_.pop_back();
    const Resource& least = resource(id);
    if (least.open == 0) continue;
    if (least.share() > share) {  // Since then flows with less than their part of it were fixed.
      heap_.emplace_back(least.share(), id);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      continue;
    }
    Fix(id);
  }
}

void FairShare::Fix(int bottleneck) {
  Resource& full = resource(bottleneck);
  const double rate = full.share();
  full.level = rate;
  for (const Entry& entry : full.entries) {
    Flow& fixed = flow(entry.flow);
    if (fixed.chosen != round_ || fixed.is_fixed) continue;
    fixed.is_fixed = true;
    fixed.new_rate = rate;
    fixed.bottleneck = bottleneck;
    for (const Use& use : fixed.uses) {
      Resource& used = resource(use.resource);
      if (used.touched != touch_) continue;
      used.left -= use.weight * rate;
      used.weight -= use.weight;
      --used.open;
    }
  }
}

/// Whether flows that were not chosen have to be, because what was a bottleneck no longer is or the
/// chosen ones deserve a part of what they have.
bool FairShare::ChooseWhoseConditionFails() {
  const std::size_t before = chosen_.size();
  for (const std::int32_t id : touched_) {
    Resource& touched = resource(id);
    double used = 0;
    double fastest = 0;  // Of the chosen ones.
    bool has_level = false;
    bool has_others = false;
    for (const Entry& entry : touched.entries) {
      const Flow& user = flow(entry.flow);
      used += user.uses[static_cast<std::size_t>(entry.use)].weight * RateOf(user);
      if (user.chosen == round_) {
        fastest = std::max(fastest, user.new_rate);
        has_level = has_level || user.bottleneck == id;
      } else {
        has_others = true;
      }
    }
    if (!has_others) continue;
    const bool has_room = used < touched.capacity * (1 - kTolerance);
    // By index: Choose only appends to another list.
    for (const Entry& entry : touched.entries) {
      const Flow& user = flow(entry.flow);
      if (user.chosen == round_) continue;
      const bool was_bottleneck = user.bottleneck == id;
      const bool lost_it = was_bottleneck && (has_room || fastest > user.rate * (1 + kTolerance));
      const bool takes_too_much = has_level && user.rate > touched.level * (1 + kTolerance);
      if (lost_it || takes_too_much) Choose(entry.flow);
    }
  }
  return chosen_.size() > before;
}

}  // namespace tidegate
