#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "collectives/simulator/binding.h"
#include "collectives/simulator/fair_share.h"
#include "collectives/simulator/orbits.h"
#include "collectives/topology/routes.h"
#include "collectives/topology/topology.h"

namespace tidegate {

/// How far bytes go.
enum class Tier : std::uint8_t {
  kRank,   ///< Not beyond the rank.
  kNode,   ///< To another rank of the node.
  kLeaf,   ///< To another node, by one switch or a cable.
  kSpine,  ///< By several switches.
};
inline constexpr int kTiers = 4;
std::string_view TierName(Tier tier);  ///< "rank", "node", "leaf", "spine".

/// The rates at which ranks do what crosses no link.
struct LocalRates {
  /// Of a rank's core or copy engine, in bytes read and written.
  double core_Bps = std::numeric_limits<double>::infinity();
  /// Of a node's memory, in bytes read and written by its ranks and NICs together.
  double memory_Bps = std::numeric_limits<double>::infinity();
};

/// What moving a byte in one way takes.
struct Path {
  std::vector<Use> uses;   ///< Of the resources that it takes; empty: takes no time.
  std::vector<Use> links;  ///< Directed links that it crosses, and the part of the byte.
  double latency_s = 0;
  Tier tier = Tier::kRank;
  int transfers = 1;        ///< Times that the byte goes so far: operands from other ranks.
  std::size_t binding = 0;  ///< Uses up to this one are all that can bound it (Network::Settle).

  std::span<const Use> BindingUses() const { return std::span(uses).first(binding); }
};

/// A topology as resources of a FairShare, and the ways through it. Resources stand for their whole
/// orbit (orbits.h), and so do flows: one that starts at a representative loads a resource as often
/// as its translates do. Finds paths on demand and keeps them; their numbers and what they refer to
/// stay valid. Refers to the topology. One thread at a time.
class Network {
 public:
  /// `striped`: bytes between nodes are divided over several NICs (Router::FindStripes), and
  /// proceed together; else they take the route of routes.h.
  Network(const Topology& topology, Orbits orbits, const LocalRates& rates, bool striped);

  const Topology& topology() const { return topology_; }
  /// Ranks that stand for all.
  int representatives() const { return orbits_.shift; }
  std::vector<double> Capacities() const { return capacities_; }
  const Path& path(int id) const { return paths_[static_cast<std::size_t>(id)]; }
  int paths() const { return static_cast<int>(paths_.size()); }

  /// From the memory of one rank to that of another, by NICs where they are on different nodes.
  int Between(int from, int to);
  /// One step of `rank` that reads `reads` operands and writes one result, of equal size; operands
  /// that lie on other ranks of the node are at `sources`, ascending, repeated where several are.
  int Local(int rank, int reads, std::span<const int> sources);

  /// Puts uses that can bound a path, with all that are known, before those that cannot; not while
  /// a FairShare refers to them. Cost: O(uses of the paths found since), of all where they differ.
  void Settle();

  /// Adds `bytes` that took `path` to `link_bytes`, by directed link: to each of an orbit's.
  void AddLinkBytes(int path, double bytes, std::vector<double>* link_bytes) const;
  /// What AddLinkBytes left at the lowest of each orbit, at all of them.
  void SpreadOverOrbits(std::vector<double>* link_bytes) const;

 private:
  struct KeyHash {
    std::size_t operator()(const std::vector<std::int32_t>& key) const;
  };

  void AddLinkResources();
  std::vector<std::uint8_t> Classes() const;
  void UseLink(LinkId link, double part, Path& path) const;
  void UseRoute(const Route& route, double part, Path& path) const;
  void UseLocal(int rank, double core, double memory, Path& path) const;
  int Keep(Path path);

  const Topology& topology_;
  const Orbits orbits_;
  const bool striped_;
  Router router_;
  std::vector<double> capacities_;
  std::vector<std::int32_t> resource_of_link_;  ///< By directed link.
  std::vector<double> weight_of_link_;          ///< What a byte takes of it; translates included.
  std::int32_t first_core_ = -1;                ///< Resource of rank 0; -1: no bound.
  std::int32_t first_memory_ = -1;              ///< Resource of node 0; -1: no bound.
  std::vector<Path> paths_;
  std::unordered_map<std::vector<std::int32_t>, int, KeyHash> known_;
  BindingResources binding_{{}, {}};
  std::size_t settled_ = 0;  ///< Paths that binding_ takes account of.
  Route route_;
};

}  // namespace tidegate
