// Which algorithms there are, by name.

#include <algorithm>
#include <utility>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/flow_claims.h"
#include "collectives/algorithms/flows.h"
#include "collectives/algorithms/lower.h"

namespace tidegate {
namespace {

using FlowMaker = std::function<Flow(const Placement& placement, int rank)>;

bool Always(const Placement&) { return true; }
bool Nowhere(const Placement&) { return false; }
bool OnOneNode(const Placement& placement) { return placement.nodes() == 1; }
bool BeyondOneNode(const Placement& placement) { return placement.nodes() > 1; }
/// Of which at least one has several ranks.
bool OnSeveralNodes(const Placement& placement) {
  return placement.nodes() > 1 && placement.nodes() < placement.ranks();
}
/// What every rank or node sends whole to every other one is for few of them: beyond, other plans
/// are faster but for the shortest messages, and its own soon too long to be verified.
constexpr int kMostAtOnce = 64;
bool AmongFewRanks(const Placement& placement) {
  return placement.nodes() == 1 || placement.ranks() <= kMostAtOnce;
}
bool OnFewNodes(const Placement& placement) {
  return OnSeveralNodes(placement) && placement.nodes() <= kMostAtOnce;
}
bool BeyondTwoNodes(const Placement& placement) { return placement.nodes() > 2; }
bool WithPowerOfTwoRanks(const Placement& placement) { return IsPowerOfTwo(placement.ranks()); }
bool WithPowerOfTwoNodes(const Placement& placement) {
  return OnSeveralNodes(placement) && IsPowerOfTwo(placement.nodes());
}

/// `each`, which wants a placement, for input that may have none.
template <typename Each>
auto WithPlacement(const Each& each) {
  return [each](const AlgorithmInput& input) {
    if (input.placement != nullptr) return each(*input.placement, input);
    return each(Placement::OneNode(input.ranks), input);
  };
}
template <typename Build, typename Claim>
Algorithm WithPlacement(const Build& build, const Claim& claim) {
  return {WithPlacement(build), WithPlacement(claim)};
}

/// What is for one node, or sends nothing.
Algorithm OffTheWire(Schedule (*build)(const AlgorithmInput&)) {
  return {build, [](const AlgorithmInput&) { return std::vector<WireClaim>(); }};
}

/// Of the flow that `make` makes of a placement and an input: the program that `lower` and what
/// `claim` say.
template <typename Make, typename Lower>
Algorithm OfFlow(const Make& make, const Lower& lower,
                 std::vector<WireClaim> (*claim)(const Flow& flow)) {
  return WithPlacement(
      [make, lower](const Placement& placement, const AlgorithmInput& input) {
        return lower(make(placement, input));
      },
      [make, claim](const Placement& placement, const AlgorithmInput& input) {
        return claim(make(placement, input));
      });
}

auto SpreadFor(Collective collective) {
  return [collective](const Flow& flow) { return Spread(flow, collective); };
}
auto CollectFor(Collective collective) {
  return [collective](const Flow& flow) { return Collect(flow, collective); };
}

/// all_gather, its transpose, and both after each other. `back`: the one to transpose, where it is
/// another.
void AddFlow(std::vector<NamedAlgorithm>& all, const std::string& name,
             bool (*serves)(const Placement&), const FlowMaker& make,
             bool (*in_one_pass)(const Placement&) = Nowhere, const FlowMaker& back = nullptr) {
  const auto of_rank = [make](const Placement& placement, const AlgorithmInput& input) {
    return make(placement, input.rank);
  };
  const auto back_of_rank = [back = back ? back : make](const Placement& placement,
                                                        const AlgorithmInput& input) {
    return back(placement, input.rank);
  };
  all.push_back({Collective::kAllGather, name, serves, in_one_pass,
                 OfFlow(of_rank, SpreadFor(Collective::kAllGather), ClaimOfSpread)});
  all.push_back({Collective::kReduceScatter, name, serves, in_one_pass,
                 OfFlow(back_of_rank, CollectFor(Collective::kReduceScatter), ClaimOfCollect)});
  all.push_back({Collective::kAllReduce, name, serves, in_one_pass,
                 WithPlacement(
                     [=](const Placement& placement, const AlgorithmInput& input) {
                       return CollectAndSpread(back_of_rank(placement, input),
                                               of_rank(placement, input));
                     },
                     [=](const Placement& placement, const AlgorithmInput& input) {
                       return ClaimOfCollectAndSpread(back_of_rank(placement, input),
                                                      of_rank(placement, input));
                     })});
}

Flow TreeOf(const Placement& placement, const AlgorithmInput& input) {
  return TreeFlow(placement, input.rank, input.root);
}

/// The exchange between nodes, as that of `rank` sees it.
using NodeExchange = Exchange (*)(const Placement& placement, int rank);

template <ExchangeMaker kMake>
Exchange OfNodes(const Placement& placement, int rank) {
  return kMake(placement.node_of(rank), placement.nodes());
}

/// Among switches first, so that each block enters a switch once.
Exchange FarFirstOfNodes(const Placement& placement, int rank) {
  return FarFirstExchange(placement.node_of(rank), placement.nodes(), placement.nodes_per_switch());
}

Exchange SegmentedFarFirstOfNodes(const Placement& placement, int rank) {
  return SegmentedFarFirstExchange(placement.node_of(rank), placement.nodes(),
                                   placement.nodes_per_switch());
}

/// Times of a circle: as many as there are turns among up to 8,192 nodes. Of turns that are taken
/// together a rank hears when the last is done, and below switches loses step where that is too
/// late to pass on what the first one brought (docs/scale.md).
constexpr int kCircleTimes = 8191;
/// Backwards a time takes a pair of progress words and one more for each rank of the longer chain
/// of readers: 255 times of nodes of eight. Below one switch nothing is passed on between nodes,
/// and half as many times are better: a short turn is over before a chain is.
constexpr int kCircleBackPairs = 1280;
/// The fewest of which a node of eight spares enough copies to keep its wire busy meanwhile.
constexpr int kCircleReaders = 2;

int SwitchesOf(const Placement& placement) {
  return placement.nodes_per_switch() > 1 ? placement.nodes() / placement.nodes_per_switch() : 1;
}

/// Forwards a message is waited for some turns after its sending, so that the next ones are on
/// their way by then. Eight do at 400 GB/s from messages of 256 KB on; the more nodes, the shorter
/// these are. What is passed on below a switch, half a round later, may not wait for more.
Exchange CircleOfNodes(const Placement& placement, int rank) {
  const int switches = SwitchesOf(placement);
  return CircleExchange(placement.node_of(rank), placement.nodes(),
                        {.groups = switches,
                         .most_times = kCircleTimes,
                         .wire_flight = switches > 1 ? 8 : std::max(8, placement.nodes() / 128),
                         .node_flight = 2});
}

Exchange BackCircleOfNodes(const Placement& placement, int rank) {
  const int switches = SwitchesOf(placement);
  const int readers_deep =
      (placement.ranks_on_largest_node() - 1 + kCircleReaders - 1) / kCircleReaders;
  const int pairs = switches > 1 ? kCircleBackPairs : kCircleBackPairs / 2;
  return CircleExchange(
      placement.node_of(rank), placement.nodes(),
      {.groups = switches, .most_times = std::max(1, pairs / (1 + readers_deep) - 1)});
}

std::vector<NamedAlgorithm> MakeAll() {
  struct NamedExchange {
    const char* name;
    ExchangeMaker make;
    NodeExchange of_nodes;
    bool needs_power_of_two;
  };
  const NamedExchange exchanges[] = {
      {"ring", RingExchange, OfNodes<RingExchange>, false},
      {"bruck", BruckExchange, OfNodes<BruckExchange>, false},
      {"far_first", FarFirstExchange, FarFirstOfNodes, false},
      {"recursive_doubling", RecursiveDoublingExchange, OfNodes<RecursiveDoublingExchange>, true},
      {"pairwise", PairwiseExchange, OfNodes<PairwiseExchange>, false}};
  std::vector<NamedAlgorithm> all;
  AddFlow(all, "direct", Always, DirectFlow, Always);
  for (const NamedExchange& exchange : exchanges) {
    const NodeExchange make = exchange.of_nodes;
    AddFlow(all, std::string("column_") + exchange.name,
            exchange.needs_power_of_two ? WithPowerOfTwoNodes : OnSeveralNodes,
            [make](const Placement& placement, int rank) {
              return ColumnFlow(placement, rank, make(placement, rank));
            });
  }
  // Backwards a carrier has few readers, so that of seven ranks only these copy what they give into
  // their stage; and segments are smaller, because chunks follow each other less closely.
  struct Chained {
    const char* name;
    NodeExchange make;
    NodeExchange make_back;
    int readers;
  };
  for (const Chained& chained :
       {Chained{"column_segmented_bruck", OfNodes<SegmentedBruckExchange<16>>,
                OfNodes<SegmentedBruckExchange<32>>, 3},
        Chained{"column_segmented_far_first", SegmentedFarFirstOfNodes, SegmentedFarFirstOfNodes,
                3},
        Chained{"column_circle", CircleOfNodes, BackCircleOfNodes, kCircleReaders}}) {
    const auto [name, make, make_back, readers] = chained;
    AddFlow(
        all, name, OnSeveralNodes,
        [make](const Placement& placement, int rank) {
          return ColumnFlow(placement, rank, make(placement, rank));
        },
        Nowhere,
        [make_back, readers](const Placement& placement, int rank) {
          return ColumnFlow(placement, rank, make_back(placement, rank), readers);
        });
  }
  for (const NamedExchange& exchange : exchanges) {
    const ExchangeMaker make = exchange.make;
    const bool powers = exchange.needs_power_of_two;
    if (make != PairwiseExchange)
      AddFlow(
          all, exchange.name, powers ? WithPowerOfTwoRanks : Always,
          [make](const Placement& placement, int rank) { return FlatFlow(placement, rank, make); });
    // Of the other exchanges column first is as fast or faster everywhere (docs/algorithms.md).
    if (make == RingExchange || make == PairwiseExchange)
      AddFlow(all, std::string("leader_") + exchange.name, OnSeveralNodes,
              [make](const Placement& placement, int rank) {
                return LeaderFlow(placement, rank, make);
              });
  }
  const auto add = [&](Collective collective, const char* name, bool (*serves)(const Placement&),
                       Algorithm algorithm, bool (*in_one_pass)(const Placement&) = Nowhere) {
    all.push_back({collective, name, serves, in_one_pass, std::move(algorithm)});
  };
  add(Collective::kAllReduce, "one_shot", AmongFewRanks,
      WithPlacement(AllReduceOneShot, ClaimOfAllReduceOneShot), Always);
  add(Collective::kAllReduce, "column_one_shot", OnFewNodes,
      WithPlacement(AllReduceColumnOneShot, ClaimOfAllReduceColumnOneShot));
  add(Collective::kAllReduce, "column_doubling", BeyondTwoNodes,
      WithPlacement(AllReduceColumnDoubling, ClaimOfAllReduceColumnDoubling));
  add(Collective::kBroadcast, "tree", Always,
      OfFlow(TreeOf, SpreadFor(Collective::kBroadcast), ClaimOfSpread));
  add(Collective::kReduce, "two_shot", OnOneNode, OffTheWire(ReduceTwoShot), OnOneNode);
  add(Collective::kReduce, "tree", Always,
      OfFlow(TreeOf, CollectFor(Collective::kReduce), ClaimOfCollect), OnOneNode);
  struct NamedBroadcast {
    const char* name;
    NodeBroadcastMaker make;
  };
  const NamedBroadcast broadcasts[] = {{"column_scatter_pairwise", ScatterPairwiseBroadcast},
                                       {"column_scatter_bruck", ScatterBruckBroadcast},
                                       {"column_chain", ChainBroadcast}};
  for (const NamedBroadcast& broadcast : broadcasts) {
    const auto of_root = [make = broadcast.make](const Placement& placement,
                                                 const AlgorithmInput& input) {
      return ColumnBroadcastFlow(placement, input.rank, input.root, make);
    };
    add(Collective::kBroadcast, broadcast.name, BeyondOneNode,
        OfFlow(of_root, SpreadFor(Collective::kBroadcast), ClaimOfSpread));
    add(Collective::kReduce, broadcast.name, BeyondOneNode,
        OfFlow(of_root, CollectFor(Collective::kReduce), ClaimOfCollect));
  }
  add(Collective::kGather, "direct", Always, WithPlacement(GatherDirect, ClaimOfGatherDirect));
  add(Collective::kGather, "column", OnSeveralNodes,
      WithPlacement(GatherColumn, ClaimOfGatherColumn));
  all.back().even = true;
  add(Collective::kScatter, "direct", Always, WithPlacement(ScatterDirect, ClaimOfScatterDirect));
  add(Collective::kScatter, "column", OnSeveralNodes,
      WithPlacement(ScatterColumn, ClaimOfScatterColumn));
  all.back().even = true;
  add(Collective::kAllToAll, "direct", OnOneNode, OffTheWire(AllToAllDirect));
  add(Collective::kAllToAll, "pairwise", BeyondOneNode,
      WithPlacement(AllToAllPairwise, ClaimOfAllToAllPairwise));
  add(Collective::kAllToAll, "column", OnSeveralNodes,
      WithPlacement(AllToAllColumn, ClaimOfAllToAllColumn));
  all.back().even = true;
  add(Collective::kBarrier, "arrival", Always, OffTheWire(BarrierArrival));
  return all;
}

}  // namespace

const std::vector<NamedAlgorithm>& AllAlgorithms() {
  static const std::vector<NamedAlgorithm> all = MakeAll();
  return all;
}

const NamedAlgorithm* FindAlgorithm(Collective collective, std::string_view name) {
  for (const NamedAlgorithm& algorithm : AllAlgorithms())
    if (algorithm.collective == collective && algorithm.name == name) return &algorithm;
  return nullptr;
}

}  // namespace tidegate
