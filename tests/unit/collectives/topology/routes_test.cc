#include "collectives/topology/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/topology/fake_cluster.h"

namespace tidegate {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Ids(const Topology& topology, const Route& route) {
  std::vector<std::string> ids;
  for (const LinkId id : route.links) {
    if (ids.empty()) ids.push_back(topology.vertex(topology.from(id)).id);
    EXPECT_EQ(topology.vertex(topology.from(id)).id, ids.back()) << "links are not a chain";
    ids.push_back(topology.vertex(topology.to(id)).id);
  }
  return ids;
}

TEST(RoutesTest, ARankReachesItselfWithoutALink) {
  const Topology topology = FakeCluster(1, 2);
  const Route route = Router(topology).Find(1, 1);
  EXPECT_TRUE(route.links.empty());
  EXPECT_EQ(route.path, PathClass::kLoc);
}

TEST(RoutesTest, FiguresOfAFakeClusterAreThoseOfItsOptions) {
  const Topology topology = FakeCluster(2, 2,
                                        {.intra_latency_s = 2e-6,
                                         .intra_bandwidth_Bps = 80e9,
                                         .inter_latency_s = 9e-6,
                                         .nic_bandwidth_Bps = 25e9});
  Router router(topology);
  const Route inside = router.Find(0, 1);
  EXPECT_THAT(Ids(topology, inside), ElementsAre("node0/rank0", "node0", "node0/rank1"));
  EXPECT_DOUBLE_EQ(inside.latency_s, 2e-6);
  EXPECT_EQ(inside.bandwidth_Bps, 80e9);
  EXPECT_EQ(inside.path, PathClass::kLoc);
  EXPECT_EQ(inside.rail, kNone);
  const Route between = router.Find(1, 2);
  EXPECT_THAT(Ids(topology, between),
              ElementsAre("node0/rank1", "node0", "node0/nic0", "fabric/switch", "node1/nic0",
                          "node1", "node1/rank0"));
  EXPECT_DOUBLE_EQ(between.latency_s, 9e-6);
  EXPECT_EQ(between.bandwidth_Bps, 25e9);
  EXPECT_EQ(between.path, PathClass::kNet);
  EXPECT_EQ(between.rail, 0);
}

TEST(RoutesTest, RanksOfANodeSpreadOverItsRails) {
  const Topology topology =
      FakeCluster(2, 4, {.rails = 2, .fabric = FabricKind::kRailOnly, .nodes_per_leaf = 0});
  Router router(topology);
  for (int local = 0; local < 4; ++local) {
    EXPECT_EQ(router.Find(local, 4 + local).rail, local % 2);
    EXPECT_EQ(router.Rails(local).front().rail, local % 2);
    EXPECT_EQ(router.Rails(local).size(), 2U);
  }
}

TEST(RoutesTest, RailsThatMeetOnlyInsideNodesAreChangedThere) {
  const Topology topology =
      FakeCluster(2, 2, {.rails = 2, .fabric = FabricKind::kRailOnly, .nodes_per_leaf = 0});
  Router router(topology);
  const Route route = router.Find(0, 3);  // local rank 0 to local rank 1
  EXPECT_THAT(Ids(topology, route),
              ElementsAre("node0/rank0", "node0", "node0/nic1", "fabric/rail1leaf0", "node1/nic1",
                          "node1", "node1/rank1"));
}

TEST(RoutesTest, StripesMayTakeEachRail) {
  const Topology topology =
      FakeCluster(2, 1, {.nic_bandwidths_Bps = {75e9, 25e9}, .fabric = FabricKind::kRailOptimised});
  Router router(topology);
  Route route;
  for (int rail = 0; rail < 2; ++rail) {
    router.FindOnRail(0, 1, rail, route);
    EXPECT_EQ(route.rail, rail);
    EXPECT_EQ(route.bandwidth_Bps, rail == 0 ? 75e9 : 25e9);
  }
  router.FindOnRail(0, 1, 2, route);
  EXPECT_EQ(route.path, PathClass::kDis);
  EXPECT_EQ(router.NodeBandwidth(0), 100e9);
  EXPECT_EQ(router.RailsOfNode(1)[1].bandwidth_Bps, 25e9);
}

TEST(RoutesTest, NodesBelowOneLeafDoNotCrossTheSpine) {
  const Topology topology = FakeCluster(4, 1,
                                        {.inter_latency_s = 5e-6,
                                         .nic_bandwidth_Bps = 40e9,
                                         .fabric = FabricKind::kFatTree,
                                         .nodes_per_leaf = 2,
                                         .oversubscription = 4,
                                         .spine_latency_s = 1e-6});
  Router router(topology);
  EXPECT_DOUBLE_EQ(router.Find(0, 1).latency_s, 5e-6);
  EXPECT_EQ(router.Find(0, 1).bandwidth_Bps, 40e9);
  EXPECT_DOUBLE_EQ(router.Find(0, 2).latency_s, 6e-6);
  EXPECT_EQ(router.Find(0, 2).bandwidth_Bps, 20e9);  // two ports of 40 over 4
}

TEST(RoutesTest, ASlowerPortThanItsLinkCounts) {
  TopologyParts parts = FakeCluster(2, 1).parts();
  for (Vertex& vertex : parts.vertices) {
    if (vertex.id == "node1/nic0") vertex.bandwidth_Bps = 1e9;
  }
  const Topology topology = Topology::Make(parts).value();
  EXPECT_EQ(Router(topology).Find(0, 1).bandwidth_Bps, 1e9);
}

TEST(RoutesTest, ReverseRoutesHaveEqualFigures) {
  const Topology topology =
      FakeCluster(6, 3, {.rails = 2, .fabric = FabricKind::kRailOptimised, .nodes_per_leaf = 2});
  Router router(topology);
  for (int from = 0; from < topology.ranks(); ++from) {
    for (int to = 0; to < topology.ranks(); ++to) {
      const Route there = router.Find(from, to);
      const Route back = router.Find(to, from);
      EXPECT_EQ(there.path, back.path);
      EXPECT_EQ(there.links.size(), back.links.size());
      EXPECT_DOUBLE_EQ(there.latency_s, back.latency_s);
    }
  }
}

TEST(RoutesTest, NodesCabledBackToBackNeedNoSwitch) {
  TopologyParts parts = FakeCluster(2, 1).parts();
  parts.vertices.pop_back();  // the switch
  parts.links.resize(4);
  VertexId nics[2] = {kNone, kNone};
  for (VertexId v = 0; v < static_cast<VertexId>(parts.vertices.size()); ++v) {
    const Vertex& vertex = parts.vertices[static_cast<std::size_t>(v)];
    if (vertex.kind == VertexKind::kNic) nics[vertex.node] = v;
  }
  parts.links.push_back(
      {.a = nics[0], .b = nics[1], .bandwidth_Bps = {1e9, 2e9}, .path = PathClass::kNet});
  const Topology topology = Topology::Make(parts).value();
  Router router(topology);
  EXPECT_EQ(router.Find(0, 1).bandwidth_Bps, 1e9);
  EXPECT_EQ(router.Find(1, 0).bandwidth_Bps, 2e9);
  EXPECT_EQ(router.Find(0, 1).links.size(), 5U);
}

TEST(RoutesTest, SixteenThousandRanksAreQuick) {
  const Topology topology =
      FakeCluster(2048, 8, {.rails = 8, .fabric = FabricKind::kRailOptimised});
  EXPECT_EQ(topology.ranks(), 16384);
  Router router(topology);
  Route route;
  std::size_t links = 0;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    for (int shift = 8; shift < topology.ranks(); shift *= 2) {
      router.Find(rank, (rank + shift) % topology.ranks(), route);
      ASSERT_EQ(route.path, PathClass::kNet);
      ASSERT_EQ(route.rail, rank % 8);
      links += route.links.size();
    }
  }
  EXPECT_GT(links, 16384U * 11 * 6);
}

}  // namespace
}  // namespace tidegate
