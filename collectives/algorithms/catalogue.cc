// Which algorithms there are, by name.

#include <algorithm>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/flows.h"
#include "collectives/algorithms/lower.h"

namespace tidegate {
namespace {

using FlowMaker = std::function<Flow(const Placement& placement, int rank)>;

bool Always(const Placement&) { return true; }
bool OnOneNode(const Placement& placement) { return placement.nodes() == 1; }
bool BeyondOneNode(const Placement& placement) { return placement.nodes() > 1; }
/// Of which at least one has several ranks.
bool OnSeveralNodes(const Placement& placement) {
  return placement.nodes() > 1 && placement.nodes() < placement.ranks();
}
bool WithPowerOfTwoRanks(const Placement& placement) { return IsPowerOfTwo(placement.ranks()); }
bool WithPowerOfTwoNodes(const Placement& placement) {
  return OnSeveralNodes(placement) && IsPowerOfTwo(placement.nodes());
}

template <typename Build>
Algorithm WithPlacement(Build build) {
  return [build](const AlgorithmInput& input) {
    if (input.placement != nullptr) return build(*input.placement, input);
    return build(Placement::OneNode(input.ranks), input);
  };
}

/// all_gather, its transpose, and both after each other.
void AddFlow(std::vector<NamedAlgorithm>& all, const std::string& name,
             bool (*serves)(const Placement&), const FlowMaker& make, bool in_one_pass = false) {
  all.push_back({Collective::kAllGather, name, serves, in_one_pass,
                 WithPlacement([make](const Placement& placement, const AlgorithmInput& input) {
                   return Spread(make(placement, input.rank), Collective::kAllGather);
                 })});
  all.push_back({Collective::kReduceScatter, name, serves, in_one_pass,
                 WithPlacement([make](const Placement& placement, const AlgorithmInput& input) {
                   return Collect(make(placement, input.rank), Collective::kReduceScatter);
                 })});
  all.push_back({Collective::kAllReduce, name, serves, in_one_pass,
                 WithPlacement([make](const Placement& placement, const AlgorithmInput& input) {
                   return CollectAndSpread(make(placement, input.rank));
                 })});
}

std::vector<NamedAlgorithm> MakeAll() {
  struct NamedExchange {
    const char* name;
    ExchangeMaker make;
    bool needs_power_of_two;
  };
  const NamedExchange exchanges[] = {{"ring", RingExchange, false},
                                     {"bruck", BruckExchange, false},
                                     {"far_first", FarFirstExchange, false},
                                     {"recursive_doubling", RecursiveDoublingExchange, true},
                                     {"pairwise", PairwiseExchange, false}};
  std::vector<NamedAlgorithm> all;
  AddFlow(all, "direct", Always, DirectFlow, /*in_one_pass=*/true);
  for (const NamedExchange& exchange : exchanges) {
    const ExchangeMaker make = exchange.make;
    const bool powers = exchange.needs_power_of_two;
    AddFlow(
        all, std::string("column_") + exchange.name, powers ? WithPowerOfTwoNodes : OnSeveralNodes,
        [make](const Placement& placement, int rank) { return ColumnFlow(placement, rank, make); });
  }
  for (const NamedExchange& exchange : exchanges) {
    const ExchangeMaker make = exchange.make;
    const bool powers = exchange.needs_power_of_two;
    if (make != PairwiseExchange)
      AddFlow(
          all, exchange.name, powers ? WithPowerOfTwoRanks : Always,
          [make](const Placement& placement, int rank) { return FlatFlow(placement, rank, make); });
    AddFlow(
        all, std::string("leader_") + exchange.name, powers ? WithPowerOfTwoNodes : OnSeveralNodes,
        [make](const Placement& placement, int rank) { return LeaderFlow(placement, rank, make); });
  }
  all.push_back({Collective::kAllReduce, "one_shot", OnOneNode, true, AllReduceOneShot});
  all.push_back({Collective::kBroadcast, "tree", Always, false,
                 WithPlacement([](const Placement& placement, const AlgorithmInput& input) {
                   return Spread(TreeFlow(placement, input.rank, input.root),
                                 Collective::kBroadcast);
                 })});
  all.push_back({Collective::kReduce, "two_shot", OnOneNode, true, ReduceTwoShot});
  all.push_back({Collective::kReduce, "tree", Always, false,
                 WithPlacement([](const Placement& placement, const AlgorithmInput& input) {
                   return Collect(TreeFlow(placement, input.rank, input.root), Collective::kReduce);
                 })});
  all.push_back({Collective::kGather, "direct", Always, false, WithPlacement(GatherDirect)});
  all.push_back(
      {Collective::kGather, "column", OnSeveralNodes, false, WithPlacement(GatherColumn)});
  all.push_back({Collective::kScatter, "direct", Always, false, WithPlacement(ScatterDirect)});
  all.push_back(
      {Collective::kScatter, "column", OnSeveralNodes, false, WithPlacement(ScatterColumn)});
  all.push_back({Collective::kAllToAll, "direct", OnOneNode, false, AllToAllDirect});
  all.push_back(
      {Collective::kAllToAll, "pairwise", BeyondOneNode, false, WithPlacement(AllToAllPairwise)});
  all.push_back({Collective::kBarrier, "arrival", Always, false, BarrierArrival});
  return all;
}

}  // namespace

const std::vector<NamedAlgorithm>& AllAlgorithms() {
  static const std::vector<NamedAlgorithm> kAll = MakeAll();
  return kAll;
}

const NamedAlgorithm* FindAlgorithm(Collective collective, std::string_view name) {
  for (const NamedAlgorithm& algorithm : AllAlgorithms())
    if (algorithm.collective == collective && algorithm.name == name) return &algorithm;
  return nullptr;
}

}  // namespace tidegate
