#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/simulator/fair_share.h"

namespace tidegate {

/// Finds resources that a FairShare need not know, because others admit no rates that they would
/// refuse: the feasible rates, and with them the max-min fair ones, are the same without. So it is
/// where, on all paths that use the resource,
///
/// - another one is used, too, and each byte takes at least as large a part of its capacity: of a
///   message striped over eight NICs of equal load one is left; or
/// - one of several of a class is used, which together admit no more: what leaves a switch without
///   oversubscription is bounded by the NICs below it.
///
/// Exact, and what a change of rates reaches gets less by an order of magnitude. One thread at a
/// time.
class BindingResources {
 public:
  /// Resources of given capacity, each of a class: a small number.
  BindingResources(std::span<const double> capacities, std::span<const std::uint8_t> classes);

  /// Also takes account of a path with these uses; each resource once.
  void Include(std::span<const Use> uses);
  /// Decides anew; whether that differs from what Binds said before. Cost: O(resources).
  bool Decide();
  /// Whether uses of `resource` have to stay. Of each path at least one has.
  bool Binds(std::int32_t resource) const { return At(resource).binds; }

 private:
  /// What the resources of one class admit on the paths that use another resource.
  struct Together {
    struct Member {
      std::int32_t resource;
      double most;  ///< Of what it admits: bytes here for each of its own, at most.
    };
    std::uint8_t of_class;
    double admitted = 0;
    bool holds = true;
    std::vector<Member> members = {};
  };
  struct Resource {
    double capacity = 0;
    std::uint8_t of_class = 0;
    bool is_used = false;
    bool binds = true;
    std::vector<std::int32_t> covers;  ///< Those that bound it alone, on all paths so far.
    std::vector<Together> together;    ///< Those that bound it together.
    // Of one Include.
    double weight = 0;  ///< 0: not on the path.
    double part() const { return weight / capacity; }
  };

  const Resource& At(std::int32_t id) const { return resources_[static_cast<std::size_t>(id)]; }
  Resource& At(std::int32_t id) { return resources_[static_cast<std::size_t>(id)]; }
  void Begin(std::int32_t id, std::span<const Use> uses);
  void Narrow(std::int32_t id);
  void Admit(const Resource& used, Together& together) const;
  bool Covers(std::int32_t one, std::int32_t other) const;
  bool Holds(std::int32_t id, std::int32_t without) const;

  std::vector<Resource> resources_;
  std::vector<std::int32_t> first_;  ///< By class: the first on the path of one Include, or -1.
};

}  // namespace tidegate
