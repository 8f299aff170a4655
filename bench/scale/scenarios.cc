#include "bench/scale/scenarios.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "collectives/simulator/faults.h"
#include "collectives/topology/fake_cluster.h"

namespace tidegate::scale {
namespace {

constexpr int kMostExact = 1024;
constexpr int kNodesPerLeaf = 32;
constexpr int kLeaf = kNodesPerLeaf * kRanksPerNode;

/// Eight ranks of 450 GB/s and eight NICs of 50 GB/s a node, 1 us inside, 5 us between.
FakeClusterOptions Machine() {
  FakeClusterOptions options;
  options.intra_bandwidth_Bps = 450e9;
  options.rails = kRanksPerNode;
  options.nodes_per_leaf = kNodesPerLeaf;
  return options;
}

/// The ports of the NICs for which `chosen` holds.
template <typename Chosen>
Topology WithPorts(const Topology& topology, double factor, Chosen chosen) {
  std::vector<LinkFault> faults;
  for (LinkId link = 0; link < topology.link_end(); link += 2) {
    const Vertex& a = topology.vertex(topology.from(link));
    const Vertex& b = topology.vertex(topology.to(link));
    const Vertex& nic = a.kind == VertexKind::kNic ? a : b;
    const Vertex& other = a.kind == VertexKind::kNic ? b : a;
    if (nic.kind == VertexKind::kNic && other.node == kNone && chosen(nic))
      faults.push_back({link, factor});
  }
  return WithFaults(topology, faults).value();
}

std::vector<int> RandomNumbers(int ranks) {
  std::vector<int> numbers(static_cast<std::size_t>(ranks));
  std::iota(numbers.begin(), numbers.end(), 0);
  // The same in every run. NOLINTNEXTLINE(bugprone-random-generator-seed)
  std::ranges::shuffle(numbers, std::mt19937(1));
  return numbers;
}

}  // namespace

std::vector<Scenario> ScenariosOf(int ranks) {
  const int nodes = ranks / kRanksPerNode;
  const bool is_exact = ranks <= kMostExact;
  const Topology one_switch = FakeCluster(nodes, kRanksPerNode, Machine());
  const auto fat_tree = [&](double oversubscription) {
    FakeClusterOptions options = Machine();
    options.fabric = FabricKind::kFatTree;
    options.oversubscription = oversubscription;
    return FakeCluster(nodes, kRanksPerNode, options);
  };
  FakeClusterOptions rails = Machine();
  rails.fabric = FabricKind::kRailOnly;
  rails.nodes_per_leaf = 0;
  const Topology rail_only = FakeCluster(nodes, kRanksPerNode, rails);
  const auto is_slow = [](const Vertex& nic) { return nic.node == 0 && nic.rail == 0; };
  const auto is_first_rail = [](const Vertex& nic) { return nic.rail == 0; };

  std::vector<Scenario> all;
  const int node = kRanksPerNode;
  all.push_back({"one switch", one_switch, node, "", "one switch", one_switch, node});
  FakeClusterOptions single = Machine();
  single.rails = 1;
  const Topology one_nic = FakeCluster(nodes, kRanksPerNode, single);
  all.push_back({"one NIC a node", one_nic, node, "", "one NIC", one_nic, node});
  all.push_back({"fat tree 1:1", fat_tree(1), kLeaf, "", "one switch", one_switch, node});
  all.push_back({"fat tree 4:1", fat_tree(4), kLeaf, "", "one switch", one_switch, node});
  all.push_back({"rail-only", rail_only, node, "", "rail-only", rail_only, node});
  if (is_exact) {
    const Topology slow = WithPorts(one_switch, 0.5, is_slow);
    all.push_back({"one slow NIC", slow, 0, "", "one slow", slow, 0});
  }
  const Topology slow = WithPorts(one_switch, 0.5, is_first_rail);
  all.push_back(
      {"one slow NIC, approximated", slow, node, "every node has one", "slow", slow, node});
  const Topology dead = WithPorts(rail_only, 0, is_first_rail);
  all.push_back({"one dead rail", dead, node, "", "dead", dead, node});
  if (is_exact) {
    const Topology random = Renumber(fat_tree(1), RandomNumbers(ranks)).value();
    all.push_back({"random placement", random, 0, "", "random", random, 0});
  }
  const Topology dealt = Renumber(one_switch, RoundRobinNumbers(one_switch)).value();
  all.push_back({"random placement, approximated", one_switch, node,
                 "one switch; for the ring, ranks are dealt to nodes in turn", "dealt", dealt, 1});
  return all;
}

}  // namespace tidegate::scale
