#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tidegate {

/// What one byte of a flow takes of a resource: 1 of each link that it crosses, less where the flow
/// is striped over several.
struct Use {
  std::int32_t resource = 0;
  double weight = 1;
};

/// Max-min fair rates of flows over resources of given capacity: no flow's rate can grow without
/// that of a slower one, or an equal one, shrinking. The allocation is unique, and is the one in
/// which every flow has a bottleneck: a resource that is used up and on which no flow is faster
/// (Bertsekas and Gallager, Data Networks, section 6.5.2).
///
/// That condition is local, so after a change only flows that it may concern are computed anew, and
/// more as long as it fails for one: exact, at the cost of the neighbourhood of the change. One
/// thread at a time.
class FairShare {
 public:
  /// Capacities in bytes per second, positive and finite.
  explicit FairShare(std::vector<double> capacities);

  /// A new flow, by a number that is unique until it is removed; its rate is 0 until Solve. `uses`
  /// names each resource once, is not empty, and must live as long as the flow.
  int Add(std::span<const Use> uses);
  void Remove(int flow);
  bool changed() const { return !added_.empty() || !freed_.empty(); }
  /// Computes the rates; `changed` gets the flows whose rate is another than before.
  void Solve(std::vector<int>* changed);
  /// Bytes per second.
  double rate(int flow) const { return flows_[static_cast<std::size_t>(flow)].rate; }

 private:
  struct Flow {
    std::span<const Use> uses;
    std::vector<std::int32_t> positions;  ///< By use: in the resource's list.
    double rate = 0;
    double new_rate = 0;
    std::int32_t bottleneck = -1;
    std::uint32_t chosen = 0;  ///< Equal to round_: its rate is being computed.
    bool is_fixed = false;
    bool is_live = false;
  };
  struct Entry {
    std::int32_t flow;
    std::int32_t use;  ///< Which of the flow's uses this is.
  };
  struct Resource {
    double capacity = 0;
    std::vector<Entry> entries;
    std::uint32_t touched = 0;
    std::int32_t open = 0;  ///< Chosen flows whose rate is not fixed yet.
    double left = 0;        ///< Capacity that fixed flows leave.
    double weight = 0;      ///< Of open flows.
    double level = 0;       ///< Greatest rate of a chosen flow that has its bottleneck here.

    double share() const { return left > 0 ? left / weight : 0; }
  };

  Flow& flow(int id) { return flows_[static_cast<std::size_t>(id)]; }
  Resource& resource(int id) { return resources_[static_cast<std::size_t>(id)]; }
  double RateOf(const Flow& flow) const {
    return flow.chosen == round_ ? flow.new_rate : flow.rate;
  }
  void Choose(int id);
  void Touch();
  void Fill();
  void Fix(int bottleneck);
  bool ChooseWhoseConditionFails();

  std::vector<Resource> resources_;
  std::vector<Flow> flows_;
  std::vector<std::int32_t> unused_;  ///< Numbers of removed flows.
  std::vector<std::int32_t> added_;
  std::vector<std::int32_t> freed_;  ///< Resources that a removed flow used.
  // Of one Solve.
  std::uint32_t round_ = 0;
  std::uint32_t touch_ = 0;
  std::vector<std::int32_t> chosen_;
  std::vector<std::int32_t> touched_;
  std::vector<std::pair<double, std::int32_t>> heap_;
};

}  // namespace tidegate
