#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>

#include "collectives/plan_basis.h"
#include "collectives/planner/planner.h"
#include "collectives/simulator/simulator.h"
#include "collectives/topology/topology.h"

namespace tidegate {

/// A topology, its planner and its simulators, which keep what they have found out. Methods take
/// the words of a command line and return what Python prints; their errors are exceptions
/// (backend/error_translation.h). One thread at a time.
class Cluster {
 public:
  explicit Cluster(Topology topology) : topology_(std::move(topology)) {}
  Cluster(const Cluster&) = delete;  // planner and simulators refer to the topology
  Cluster& operator=(const Cluster&) = delete;

  /// A made-up cluster: "2x4" or "3+1" (ParseRanksOfNodes).
  static std::unique_ptr<Cluster> Fake(const std::string& nodes, const std::string& fabric,
                                       int rails, double oversubscription, bool round_robin);
  /// A description of the schema of docs/topology.md.
  static std::unique_ptr<Cluster> File(const std::string& path);
  /// This machine with `ranks` ranks, under the TIDEGATE_ settings of this process; it plans as a
  /// group of so many ranks does (collectives/plan_basis.h).
  static std::unique_ptr<Cluster> Machine(int ranks, const std::string& root);

  const std::string& name() const { return topology_.name(); }
  int ranks() const { return topology_.ranks(); }
  int nodes() const { return topology_.nodes(); }
  /// Ranks of each node.
  std::vector<int> RanksOfNodes() const;
  std::string Json() const;
  pybind11::list Vertices() const;
  pybind11::list Links() const;
  std::vector<std::string> Findings() const;
  pybind11::dict RouteBetween(int from, int to) const;

  /// Names of the algorithms of `collective` that serve here, in their order.
  std::vector<std::string> Algorithms(const std::string& collective) const;
  /// `watch` is called with the name of each algorithm before that is priced.
  pybind11::dict Decide(const std::string& collective, std::uint64_t bytes, int root,
                        const std::optional<std::function<void(const std::string&)>>& watch);
  /// Seconds that the planner predicts for exactly `bytes`.
  double Price(const std::string& collective, const std::string& algorithm, std::uint64_t bytes,
               int root);
  /// slot_bytes of this process, and sub_slots and parts of the schedule: what makes its chunks.
  pybind11::dict Shape(const std::string& collective, const std::string& algorithm, int root) const;
  std::string ScheduleOf(const std::string& collective, const std::string& algorithm, int rank,
                         int root, const std::string& form) const;
  void Verify(const std::string& collective, const std::string& algorithm, int root) const;
  pybind11::dict Simulate(const std::string& collective, const std::string& algorithm,
                          std::uint64_t bytes, int root, std::uint64_t chunk_bytes, int orbit);
  /// Least time and what binds.
  std::tuple<double, std::string> BoundOf(const std::string& collective, std::uint64_t bytes,
                                          int root);

 private:
  const NamedAlgorithm& Named(const std::string& collective, const std::string& algorithm) const;
  Planner& PlannerOfThis();
  /// Whose links the planner's prices come from.
  const Topology& PricedTopology();
  std::function<Schedule(int rank)> Programs(const NamedAlgorithm& algorithm, int root) const;

  Topology topology_;
  bool is_this_machine_ = false;
  std::unique_ptr<PlanBasis> basis_;  ///< Of this machine's planner.
  std::unique_ptr<Planner> planner_;
  std::map<int, Simulator> simulators_;  ///< By orbit.
};

}  // namespace tidegate
