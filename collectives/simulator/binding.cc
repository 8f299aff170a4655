#include "collectives/simulator/binding.h"

#include <algorithm>

namespace tidegate {
namespace {

/// Sums that differ by less, relatively, are equal.
constexpr double kTolerance = 1e-12;

}  // namespace

BindingResources::BindingResources(std::span<const double> capacities,
                                   std::span<const std::uint8_t> classes)
    : resources_(capacities.size()) {
  std::size_t most = 0;
  for (std::size_t i = 0; i < capacities.size(); ++i) {
    resources_[i].capacity = capacities[i];
    resources_[i].of_class = classes[i];
    most = std::max<std::size_t>(most, classes[i]);
  }
  first_.assign(most + 1, -1);
}

void BindingResources::Include(std::span<const Use> uses) {
  for (const Use& use : uses) {
    Resource& used = At(use.resource);
    used.weight = use.weight;
    std::int32_t& first = first_[used.of_class];
    if (first < 0) first = use.resource;
  }
  for (const Use& use : uses) {
    if (!At(use.resource).is_used) Begin(use.resource, uses);
    Narrow(use.resource);
  }
  for (const Use& use : uses) {
    At(use.resource).weight = 0;
    first_[At(use.resource).of_class] = -1;
  }
}

/// Whatever is on its first path may bound it.
void BindingResources::Begin(std::int32_t id, std::span<const Use> uses) {
  Resource& used = At(id);
  used.is_used = true;
  for (const Use& other : uses) {
    if (other.resource != id) used.covers.push_back(other.resource);
    const std::uint8_t of_class = At(other.resource).of_class;
    if (of_class != used.of_class && first_[of_class] == other.resource)
      used.together.push_back({.of_class = of_class});
  }
}

/// Keeps what bounds it on the path that is being included, too.
void BindingResources::Narrow(std::int32_t id) {
  Resource& used = At(id);
  std::erase_if(used.covers, [&](std::int32_t other) { return At(other).part() < used.part(); });
  for (Together& together : used.together) Admit(used, together);
  std::erase_if(used.together, [](const Together& together) { return !together.holds; });
}

void BindingResources::Admit(const Resource& used, Together& together) const {
  const std::int32_t id = first_[together.of_class];
  together.holds = false;
  if (id < 0) return;
  const double bytes = used.weight / At(id).part();
  const auto known = std::ranges::find(together.members, id, &Together::Member::resource);
  if (known == together.members.end()) {
    together.admitted += bytes;
    together.members.push_back({id, bytes});
  } else if (bytes > known->most) {
    together.admitted += bytes - known->most;
    known->most = bytes;
  }
  together.holds = together.admitted <= used.capacity * (1 + kTolerance);
}

bool BindingResources::Covers(std::int32_t one, std::int32_t other) const {
  return std::ranges::find(At(other).covers, one) != At(other).covers.end();
}

/// Whether what `id` demands follows from what binds but for `without`.
bool BindingResources::Holds(std::int32_t id, std::int32_t without) const {
  const auto stays = [&](std::int32_t other) { return other != without && At(other).binds; };
  return stays(id) || std::ranges::any_of(At(id).covers, stays);
}

bool BindingResources::Decide() {
  std::vector<bool> bound;
  bound.reserve(resources_.size());
  for (const Resource& resource : resources_) bound.push_back(resource.binds);
  const auto end = static_cast<std::int32_t>(resources_.size());
  // Of those that cover each other the lowest stays. Whatever goes then is covered by one that
  // stays, as covering is transitive.
  for (std::int32_t id = 0; id < end; ++id)
    At(id).binds = std::ranges::none_of(
        At(id).covers, [&](std::int32_t other) { return other < id || !Covers(id, other); });
  // One after the other, each on account of what then still binds.
  for (std::int32_t id = 0; id < end; ++id) {
    const auto suffices = [&](const Together& together) {
      return std::ranges::all_of(together.members, [&](const Together::Member& member) {
        return Holds(member.resource, id);
      });
    };
    if (At(id).binds && std::ranges::any_of(At(id).together, suffices)) At(id).binds = false;
  }
  for (std::int32_t id = 0; id < end; ++id)
    if (bound[static_cast<std::size_t>(id)] != At(id).binds) return true;
  return false;
}

}  // namespace tidegate
