#include "collectives/topology/bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "collectives/topology/fake_cluster.h"
#include "collectives/topology/symmetry.h"
#include "tests/unit/collectives/topology/fixtures.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kBytes = 1 << 26;

void ExpectEqual(double found, double expected) { EXPECT_NEAR(found / expected, 1, 1e-9); }

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
  EXPECT_EQ(AllToAllBound(topology, kBytes).seconds, 0);
  EXPECT_EQ(LatencyBound(topology), 0);
}

TEST(BoundsTest, NoCutOfARandomClusterNeedsMoreTime) {
  // Against all cuts, one by one, on graphs that are small enough.
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const auto rate = [&] { return 1e9 * std::uniform_int_distribution(1, 9)(random); };
    TopologyParts parts =
        MakeFakeCluster(std::vector{2, 1, 2}, {.rails = 1 + static_cast<int>(seed % 2)})
            .value()
            .parts();
    for (Link& link : parts.links) link.bandwidth_Bps = {rate(), rate()};
    const Topology topology = Topology::Make(parts).value();
    const auto vertices = static_cast<VertexId>(topology.vertices().size());
    double most = 0;
    for (std::uint32_t set = 1; set < std::uint32_t{1} << vertices; ++set) {
      const auto in = [&](VertexId v) { return (set >> v & 1) != 0; };
      int ranks = 0;
      for (int rank = 0; rank < topology.ranks(); ++rank)
        ranks += in(topology.rank_vertex(rank)) ? 1 : 0;
      if (ranks == 0 || ranks == topology.ranks()) continue;
      double out = 0;
      for (LinkId id = 0; id < topology.link_end(); ++id) {
        if (in(topology.from(id)) && !in(topology.to(id))) out += topology.bandwidth_Bps(id);
      }
      most = std::max(most, ranks * (kBytes / topology.ranks()) / out);
    }
    ExpectEqual(AllGatherBound(topology, kBytes).seconds, most);
  }
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
