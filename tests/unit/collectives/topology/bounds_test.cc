#include "collectives/topology/bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "collectives/topology/fake_cluster.h"
#include "collectives/topology/symmetry.h"
#include "tests/unit/collectives/topology/fixtures.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kBytes = 1 << 26;

void ExpectEqual(double found, double expected) { EXPECT_NEAR(found / expected, 1, 1e-9); }

/// Three nodes of two, one and two ranks, each direction of each link at a rate of its own.
Topology RandomRates(std::mt19937& random, int rails) {
  const auto rate = [&] { return 1e9 * std::uniform_int_distribution(1, 9)(random); };
  TopologyParts parts = MakeFakeCluster(std::vector{2, 1, 2}, {.rails = rails}).value().parts();
  for (Link& link : parts.links) link.bandwidth_Bps = {rate(), rate()};
  return Topology::Make(parts).value();
}

Topology TurnedRound(const Topology& topology) {
  TopologyParts parts = topology.parts();
  for (Link& link : parts.links) std::swap(link.bandwidth_Bps[0], link.bandwidth_Bps[1]);
  return Topology::Make(parts).value();
}

/// The greatest time of all sets of vertices, one by one: that of the ranks inside, by number, over
/// the bandwidth out of the set.
double SlowestOfAllSets(const Topology& topology,
                        const std::function<double(const std::vector<bool>& is_in)>& bytes_of) {
  const auto vertices = static_cast<VertexId>(topology.vertices().size());
  double most = 0;
  for (std::uint32_t set = 1; set < std::uint32_t{1} << vertices; ++set) {
    const auto in = [&](VertexId v) { return (set >> v & 1) != 0; };
    std::vector<bool> is_in;
    for (int rank = 0; rank < topology.ranks(); ++rank)
      is_in.push_back(in(topology.rank_vertex(rank)));
    const double bytes = bytes_of(is_in);
    if (bytes == 0) continue;
    double out = 0;
    for (LinkId id = 0; id < topology.link_end(); ++id)
      if (in(topology.from(id)) && !in(topology.to(id))) out += topology.bandwidth_Bps(id);
    most = std::max(most, bytes / out);
  }
  return most;
}

TEST(BoundsTest, SymmetricClustersHaveTheClosedForms) {
  for (const int n : {1, 2, 3, 4, 5, 8}) {
    for (const int g : {1, 2, 3, 4, 5, 8}) {
      for (const double inter : {1e9, 12e9, 400e9}) {
        if (n * g == 1) continue;
        const FakeClusterOptions options = {
            .intra_bandwidth_Bps = 100e9, .nic_bandwidth_Bps = inter / 4, .rails = 4};
        const Topology topology = FakeCluster(n, g, options);
        const double p = n * g;
        const double node = n == 1 ? 0 : (n - 1.0) / n * kBytes / inter;
        const double rank = (p - 1) / p * kBytes / 100e9;
        ExpectEqual(AllGatherBound(topology, kBytes).seconds, std::max(node, rank));
        ExpectEqual(ReduceScatterBound(topology, kBytes).seconds, std::max(node, rank));
        ExpectEqual(AllReduceBound(topology, kBytes).seconds, 2 * std::max(node, rank));
        const double node_crossing = g * (p - g) / p * kBytes / inter;
        ExpectEqual(AllToAllBound(topology, kBytes).seconds,
                    std::max(n == 1 ? 0 : node_crossing, rank));
        const int root = n * g / 2;
        const std::vector<double> shard = {kBytes};
        const double of_all = std::max((p - g) * kBytes / inter, (p - 1) * kBytes / 100e9);
        ExpectEqual(GatherBound(topology, shard, root).seconds, of_all);
        ExpectEqual(ScatterBound(topology, shard, root).seconds, of_all);
        const double slowest = n == 1 ? 100e9 : std::min(inter, 100e9);
        ExpectEqual(BroadcastBound(topology, kBytes, root).seconds, kBytes / slowest);
        ExpectEqual(ReduceBound(topology, kBytes, root).seconds, kBytes / slowest);
      }
    }
  }
}

TEST(BoundsTest, TheCutThatBindsIsNamed) {
  const Topology slow_nic = FakeCluster(2, 4, {.nic_bandwidth_Bps = 1e9});
  EXPECT_THAT(AllGatherBound(slow_nic, kBytes).cut,
              StartsWith("node cut: the shards of 4 ranks over 1e+09 byte/s into node \"node"));
  const Topology slow_rank = FakeCluster(2, 2, {.intra_bandwidth_Bps = 1e9});
  EXPECT_THAT(AllGatherBound(slow_rank, kBytes).cut,
              StartsWith("rank cut: the shards of 3 ranks over 1e+09 byte/s into rank "));
  EXPECT_THAT(ReduceScatterBound(slow_nic, kBytes).cut, HasSubstr("out of node \"node"));
  EXPECT_EQ(ReduceBound(slow_nic, kBytes, 5).cut,
            "all bytes over 1e+09 byte/s from rank 0 to rank 5");
  EXPECT_THAT(ScatterBound(slow_nic, std::vector{kBytes}, 5).cut,
              StartsWith("node cut: the shards of 4 ranks over 1e+09 byte/s out of node \"node1"));
}

TEST(BoundsTest, RailsThatAreJoinedByLittleBind) {
  const Result<Topology> topology = ParseTopology(R"({
    "tidegate_topology": 1, "name": "two rails",
    "nodes": [{"id": "node", "count": 3,
      "vertices": [
        {"id": "gpu0", "kind": "gpu", "number": 0}, {"id": "gpu1", "kind": "gpu", "number": 1},
        {"id": "nic0", "kind": "nic", "rail": 0, "bandwidth_Bps": 50e9,
         "link": {"to": "gpu0", "path": "PIX", "latency_s": 2e-07, "bandwidth_Bps": 50e9}},
        {"id": "nic1", "kind": "nic", "rail": 1, "bandwidth_Bps": 50e9,
         "link": {"to": "gpu1", "path": "PIX", "latency_s": 2e-07, "bandwidth_Bps": 50e9}},
        {"id": "rank0", "kind": "rank",
         "link": {"to": "gpu0", "path": "LOC", "latency_s": 5e-07, "bandwidth_Bps": 1500e9}},
        {"id": "rank1", "kind": "rank",
         "link": {"to": "gpu1", "path": "LOC", "latency_s": 5e-07, "bandwidth_Bps": 1500e9}}],
      "links": [
        {"from": "gpu0", "to": "gpu1", "path": "SYS", "latency_s": 1e-06, "bandwidth_Bps": 1e9}]}],
    "fabric": {"kind": "rail_only", "port_latency_s": 8e-7}})");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  // Three shards of one rail to the other, over three links of 1e9 byte/s.
  const Bound bound = AllGatherBound(topology.value(), kBytes);
  ExpectEqual(bound.seconds, kBytes / 6 * 3 / 3e9);
  EXPECT_THAT(bound.cut, StartsWith("rail cut: the shards of 3 ranks over 3e+09 byte/s into the "
                                    "ranks in place "));
}

TEST(BoundsTest, AnUnevenClusterWaitsForTheSmallestNode) {
  const Topology topology = MakeFakeCluster(std::vector{3, 1}, {.nic_bandwidth_Bps = 10e9}).value();
  ExpectEqual(AllGatherBound(topology, kBytes).seconds, 3.0 / 4 * kBytes / 10e9);
  const Topology three = MakeFakeCluster(std::vector{5, 2, 1}, {.nic_bandwidth_Bps = 10e9}).value();
  ExpectEqual(AllGatherBound(three, kBytes).seconds, 7.0 / 8 * kBytes / 10e9);
}

TEST(BoundsTest, OversubscribedLeavesBindBeforeTheirNodes) {
  // 4 nodes a leaf with 40e9 byte/s together, 10e9 up; half of the ranks are beyond.
  const Topology topology = FakeCluster(8, 2,
                                        {.nic_bandwidth_Bps = 10e9,
                                         .fabric = FabricKind::kFatTree,
                                         .nodes_per_leaf = 4,
                                         .oversubscription = 8});
  const double leaf = 8.0 / 16 * kBytes / 5e9;
  ExpectEqual(AllGatherBound(topology, kBytes).seconds, leaf);
  EXPECT_THAT(AllGatherBound(topology, kBytes).cut, HasSubstr("into 8 ranks of 4 nodes"));
  ExpectEqual(AllReduceBound(topology, kBytes).seconds, 2 * leaf);
  ExpectEqual(AllToAllBound(topology, kBytes).seconds, 8.0 * 8 / 16 * kBytes / 5e9);
  ExpectEqual(GatherBound(topology, std::vector{kBytes}, 3).seconds, 8 * kBytes / 5e9);
  ExpectEqual(ScatterBound(topology, std::vector{kBytes}, 3).seconds, 8 * kBytes / 5e9);
  ExpectEqual(ReduceBound(topology, kBytes, 3).seconds, kBytes / 5e9);
}

TEST(BoundsTest, DirectionsOfLinksCount) {
  TopologyParts parts = FakeCluster(2, 2, {.nic_bandwidth_Bps = 10e9}).parts();
  for (Link& link : parts.links) {
    const Vertex& a = parts.vertices[static_cast<std::size_t>(link.a)];
    if (a.id == "node1/nic0") link.bandwidth_Bps = {10e9, 2e9};  // slow towards the node
  }
  const Topology topology = Topology::Make(parts).value();
  ExpectEqual(AllGatherBound(topology, kBytes).seconds, kBytes / 2 / 2e9);
  ExpectEqual(ReduceScatterBound(topology, kBytes).seconds, kBytes / 2 / 2e9);
  ExpectEqual(BroadcastBound(topology, kBytes, 0).seconds, kBytes / 2e9);
  ExpectEqual(BroadcastBound(topology, kBytes, 2).seconds, kBytes / 10e9);
  ExpectEqual(ReduceBound(topology, kBytes, 0).seconds, kBytes / 10e9);
  ExpectEqual(ReduceBound(topology, kBytes, 2).seconds, kBytes / 2e9);
  ExpectEqual(GatherBound(topology, std::vector{kBytes}, 2).seconds, 2 * kBytes / 2e9);
  ExpectEqual(ScatterBound(topology, std::vector{kBytes}, 2).seconds, 2 * kBytes / 10e9);
}

TEST(BoundsTest, RailsAddUp) {
  const Topology topology =
      FakeCluster(2, 1, {.nic_bandwidths_Bps = {75e9, 25e9}, .fabric = FabricKind::kRailOnly});
  ExpectEqual(AllGatherBound(topology, kBytes).seconds, kBytes / 2 / 100e9);
}

TEST(BoundsTest, OneRankNeedsNoTime) {
  const Topology topology = FakeCluster(1, 1);
  EXPECT_EQ(AllGatherBound(topology, kBytes).seconds, 0);
  EXPECT_EQ(AllReduceBound(topology, kBytes).seconds, 0);
  EXPECT_EQ(BroadcastBound(topology, kBytes, 0).seconds, 0);
  EXPECT_EQ(ReduceBound(topology, kBytes, 0).seconds, 0);
  EXPECT_EQ(GatherBound(topology, std::vector{kBytes}, 0).seconds, 0);
  EXPECT_EQ(ScatterBound(topology, std::vector{kBytes}, 0).seconds, 0);
  EXPECT_EQ(AllToAllBound(topology, kBytes).seconds, 0);
  EXPECT_EQ(LatencyBound(topology), 0);
}

TEST(BoundsTest, NoCutOfARandomClusterNeedsMoreTime) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const Topology topology = RandomRates(random, 1 + static_cast<int>(seed % 2));
    const auto ranks = static_cast<std::size_t>(topology.ranks());
    const double most = SlowestOfAllSets(topology, [&](const std::vector<bool>& is_in) {
      const auto count = static_cast<std::size_t>(std::ranges::count(is_in, true));
      return count == ranks ? 0 : static_cast<double>(count) * (kBytes / 5);
    });
    ExpectEqual(AllGatherBound(topology, kBytes).seconds, most);
  }
}

TEST(BoundsTest, NoCutAroundTheRootOfARandomClusterNeedsMoreTime) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const Topology topology = RandomRates(random, 1 + static_cast<int>(seed % 2));
    const auto root = std::size_t{seed % 5};
    std::vector<double> shards(5);
    for (double& shard : shards) shard = 1000 * std::uniform_int_distribution(0, 4)(random);
    shards[(root + 1) % 5] += 1;  // Something moves.
    const double gathered = SlowestOfAllSets(topology, [&](const std::vector<bool>& is_in) {
      double bytes = 0;
      for (std::size_t rank = 0; rank < 5; ++rank) bytes += is_in[rank] ? shards[rank] : 0;
      return is_in[root] ? 0 : bytes;
    });
    ExpectEqual(GatherBound(topology, shards, static_cast<int>(root)).seconds, gathered);
    const double reduced = SlowestOfAllSets(topology, [&](const std::vector<bool>& is_in) {
      return is_in[root] || std::ranges::count(is_in, true) == 0 ? 0 : kBytes;
    });
    ExpectEqual(ReduceBound(topology, kBytes, static_cast<int>(root)).seconds, reduced);
  }
}

TEST(BoundsTest, BroadcastAndScatterAreReduceAndGatherWithLinksTurnedRound) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const Topology topology = RandomRates(random, 2);
    const Topology turned = TurnedRound(topology);
    const int root = static_cast<int>(seed % 5);
    const std::vector<double> shards = {3e6, 0, 5e6, 1e6, 4e6};
    ExpectEqual(BroadcastBound(topology, kBytes, root).seconds,
                ReduceBound(turned, kBytes, root).seconds);
    ExpectEqual(ScatterBound(topology, shards, root).seconds,
                GatherBound(turned, shards, root).seconds);
  }
}

TEST(BoundsTest, OnlyTheShardsOfOthersCount) {
  const Topology topology = FakeCluster(2, 2, {.nic_bandwidth_Bps = 10e9});
  const std::vector<double> shards = {0, 0, 3 * kBytes, kBytes};
  ExpectEqual(GatherBound(topology, shards, 0).seconds, 4 * kBytes / 10e9);
  ExpectEqual(ScatterBound(topology, shards, 1).seconds, 4 * kBytes / 10e9);
  EXPECT_THAT(GatherBound(topology, shards, 0).cut,
              StartsWith("node cut: the shards of 2 ranks over 1e+10 byte/s into node \"node0\""));
  const double rank_Bps = FakeClusterOptions{}.intra_bandwidth_Bps;
  ExpectEqual(GatherBound(topology, shards, 2).seconds, kBytes / rank_Bps);
  EXPECT_THAT(ScatterBound(topology, shards, 2).cut,
              AllOf(StartsWith("rank cut: the shards of 1 ranks"), HasSubstr("out of rank 2")));
  EXPECT_EQ(GatherBound(topology, std::vector<double>{9, 0, 0, 0}, 0).seconds, 0);
  EXPECT_EQ(GatherBound(topology, std::vector<double>{0}, 1).seconds, 0);
}

TEST(BoundsTest, SixteenThousandRanksTakeAMoment) {
  const Topology rails = Fixture("cluster_2048_rail_optimised");
  ExpectEqual(AllGatherBound(rails, 1e9).seconds, 2047.0 / 2048 * 1e9 / 400e9);
  const Topology tree = Fixture("cluster_2048_fat_tree_4to1");
  // Four nodes of 200e9 byte/s share 200e9 upwards: what one node needs, the others can be given
  // inside the leaf, so that the node still binds.
  const double node = 2047.0 / 2048 * 1e9 / 200e9;
  ExpectEqual(ReduceScatterBound(tree, 1e9).seconds, node);
  ExpectEqual(AllReduceBound(tree, 1e9).seconds, 2 * node);
  ExpectEqual(GatherBound(rails, std::vector{1e6}, 9000).seconds, (16384 - 8) * 1e6 / 400e9);
  ExpectEqual(ScatterBound(tree, std::vector{1e6}, 9000).seconds, (16384 - 8) * 1e6 / 200e9);
}

TEST(BoundsTest, LatencyGrowsWithTheLogarithmOfTheRanks) {
  const FakeClusterOptions options = {.intra_latency_s = 2e-6, .inter_latency_s = 6e-6};
  EXPECT_DOUBLE_EQ(LatencyBound(FakeCluster(2, 4, options)), 3 * 2e-6);
  EXPECT_DOUBLE_EQ(LatencyBound(FakeCluster(1, 5, options)), 3 * 2e-6);
  EXPECT_DOUBLE_EQ(LatencyBound(FakeCluster(2, 1, options)), 6e-6);
}

TEST(SymmetryTest, RanksOfASymmetricClusterAreOfOneKind) {
  const auto kinds = [](const Topology& topology) {
    return RanksOfEachColour(topology, RefineColours(topology)).size();
  };
  EXPECT_EQ(kinds(FakeCluster(5, 3)), 1U);
  EXPECT_EQ(kinds(MakeFakeCluster(std::vector{3, 1, 3}).value()), 2U);
  EXPECT_EQ(kinds(Fixture("cluster_2048_rail_optimised")), 1U);
  TopologyParts parts = FakeCluster(4, 2).parts();
  parts.links.back().bandwidth_Bps[0] /= 2;
  EXPECT_EQ(kinds(Topology::Make(parts).value()), 2U);
}

}  // namespace
}  // namespace tidegate
