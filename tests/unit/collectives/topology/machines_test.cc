#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "collectives/topology/routes.h"
#include "tests/unit/collectives/topology/fixtures.h"

namespace tidegate {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Ids(const Topology& topology, const Route& route) {
  std::vector<std::string> ids;
  for (const LinkId id : route.links) {
    if (ids.empty()) ids.push_back(topology.vertex(topology.from(id)).id);
    ids.push_back(topology.vertex(topology.to(id)).id);
  }
  return ids;
}

TEST(MachinesTest, EachFixtureReadsBackEqualAfterItIsWritten) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(TIDEGATE_SOURCE_DIR "/tests/data/topology")) {
    const Topology topology = Fixture(entry.path().stem());
    const Result<Topology> again = ParseTopology(FormatTopology(topology));
    ASSERT_TRUE(again.ok()) << entry.path() << again.status().message();
    EXPECT_EQ(again.value(), topology) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 8);
}

TEST(LaptopTest, RanksMeetInTheLastLevelCache) {
  const Topology topology = Fixture("laptop");
  const Route route = Router(topology).Find(0, 3);
  EXPECT_THAT(Ids(topology, route), ElementsAre("laptop/rank0", "laptop/core0", "laptop/llc",
                                                "laptop/core3", "laptop/rank3"));
  EXPECT_EQ(route.path, PathClass::kLoc);
  EXPECT_EQ(route.bandwidth_Bps, 12e9);
  EXPECT_TRUE(Router(topology).RailsOfNode(0).empty());
}

TEST(LaptopTest, TheMemoryBusIsSharedByReadsAndWrites) {
  const Topology topology = Fixture("laptop");
  EXPECT_EQ(std::ranges::count_if(topology.links(), &Link::shared), 1);
}

TEST(EpycTest, ThereAreEightNumaNodesWithTwoCachesEach) {
  const Topology topology = Fixture("epyc_2s_nps4");
  const auto count = [&](VertexKind kind) {
    return std::ranges::count(topology.vertices(), kind, &Vertex::kind);
  };
  EXPECT_EQ(count(VertexKind::kNuma), 8);
  EXPECT_EQ(count(VertexKind::kCache), 16);
  EXPECT_EQ(count(VertexKind::kCore), 128);
}

TEST(EpycTest, CachesOfOneNumaNodeAreLocalAndOthersAcrossTheFabric) {
  const Topology topology = Fixture("epyc_2s_nps4");
  Router router(topology);
  EXPECT_EQ(router.Find(0, 1).path, PathClass::kLoc);
  EXPECT_EQ(router.Find(0, 2).path, PathClass::kSys);
  EXPECT_EQ(router.Find(0, 15).path, PathClass::kSys);
  EXPECT_LT(router.Find(0, 1).latency_s, router.Find(0, 2).latency_s);
  EXPECT_LT(router.Find(0, 2).latency_s, router.Find(0, 15).latency_s);
  EXPECT_EQ(router.Find(0, 15).bandwidth_Bps, 25.6e9);  // what an L3 writes
}

TEST(DgxH100Test, GpusReachEachOtherOverNvlink) {
  const Topology topology = Fixture("dgx_h100");
  Router router(topology);
  for (int peer = 1; peer < 8; ++peer) {
    EXPECT_EQ(router.Find(0, peer).path, PathClass::kNvl);
    EXPECT_EQ(router.Find(0, peer).bandwidth_Bps, 450e9);
  }
}

TEST(DgxH100Test, EachGpuHasItsOwnNicBelowItsPcieSwitch) {
  const Topology cluster = Fixture("cluster_2048_rail_optimised");
  Router router(cluster);
  for (int local = 0; local < 8; ++local) {
    const std::vector<Rail>& rails = router.Rails(local);
    ASSERT_EQ(rails.size(), 8U);
    EXPECT_EQ(rails[0].affinity, PathClass::kPix);
    EXPECT_EQ(rails[0].rail, local);
    EXPECT_EQ(rails[0].bandwidth_Bps, 50e9);
    // The others are reached through the GPU that owns them.
    for (int other = 1; other < 8; ++other)
      EXPECT_EQ(rails[static_cast<std::size_t>(other)].affinity, PathClass::kPxn);
  }
  EXPECT_EQ(router.NodeBandwidth(2047), 400e9);
}

TEST(DgxH100Test, AnotherRailIsEnteredInsideTheSendersNode) {
  const Topology cluster = Fixture("cluster_2048_rail_optimised");
  const Route route = Router(cluster).Find(0, 13);  // GPU 0 of node 0 to GPU 5 of node 1
  EXPECT_EQ(route.rail, 5);
  EXPECT_THAT(Ids(cluster, route),
              ElementsAre("node0/rank0", "node0/gpu0", "node0/nvswitch", "node0/gpu5",
                          "node0/pcie5", "node0/nic5", "fabric/rail5leaf0", "node1/nic5",
                          "node1/pcie5", "node1/gpu5", "node1/rank5"));
}

TEST(HgxA100Test, GpusReachTheirNicsThroughSeveralSwitches) {
  const Topology cluster = Fixture("cluster_2048_fat_tree_4to1");
  Router router(cluster);
  std::set<std::int16_t> rails;
  for (int local = 0; local < 8; ++local) {
    EXPECT_EQ(router.Rails(local)[0].affinity, PathClass::kPxb);
    EXPECT_EQ(router.Rails(local)[1].affinity, PathClass::kPxb);
    EXPECT_GT(router.Rails(local)[2].affinity, PathClass::kPxb);
    rails.insert(router.Rails(local)[0].rail);
  }
  EXPECT_EQ(rails.size(), 8U) << "two GPUs of one switch prefer different NICs";
}

TEST(CloudNodeTest, EachGpuHasFourOfThirtyTwoNics) {
  TopologyParts parts = Fixture("cloud_8gpu_32nic").parts();
  Vertex leaf;
  leaf.kind = VertexKind::kSwitch;
  leaf.id = "fabric/leaf";
  const auto at = static_cast<VertexId>(parts.vertices.size());
  for (VertexId v = 0; v < at; ++v) {
    if (parts.vertices[static_cast<std::size_t>(v)].kind == VertexKind::kNic)
      parts.links.push_back(
          {.a = v, .b = at, .bandwidth_Bps = {12.5e9, 12.5e9}, .path = PathClass::kNet});
  }
  parts.vertices.push_back(leaf);
  const Topology topology = Topology::Make(std::move(parts)).value();
  Router router(topology);
  EXPECT_EQ(router.RailsOfNode(0).size(), 32U);
  EXPECT_EQ(router.NodeBandwidth(0), 400e9);
  for (int rank = 0; rank < 8; ++rank) {
    const std::vector<Rail>& rails = router.Rails(rank);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(rails[i].affinity, PathClass::kPix);
      EXPECT_EQ(rails[i].rail / 4, rank);
    }
    EXPECT_NE(rails[4].affinity, PathClass::kPix);
  }
}

TEST(VirtualMachineTest, NothingIsCloserThanTheHostBridge) {
  TopologyParts parts = Fixture("vm_hidden_switches").parts();
  // Without NVLink, as when the hypervisor hides that, too.
  std::erase_if(parts.links, [](const Link& link) { return link.path == PathClass::kNvl; });
  const Topology topology = Topology::Make(std::move(parts)).value();
  Router router(topology);
  EXPECT_EQ(router.Find(0, 1).path, PathClass::kPhb);
  EXPECT_EQ(router.Find(0, 7).path, PathClass::kSys);
}

TEST(VirtualMachineTest, NvlinkIsStillVisible) {
  const Topology topology = Fixture("vm_hidden_switches");
  EXPECT_EQ(Router(topology).Find(0, 7).path, PathClass::kNvl);
}

TEST(RailOptimisedClusterTest, RailsOfOneGroupMeetInTheirLeaf) {
  const Topology cluster = Fixture("cluster_2048_rail_optimised");
  EXPECT_EQ(cluster.ranks(), 16384);
  Router router(cluster);
  const auto fabric_links = [&](const Route& route) {
    return std::ranges::count_if(
        route.links, [&](LinkId id) { return cluster.link(id).path == PathClass::kNet; });
  };
  const Route near = router.Find(3, 31 * 8 + 3);
  EXPECT_EQ(fabric_links(near), 2);
  EXPECT_EQ(near.rail, 3);
  const Route far = router.Find(3, 32 * 8 + 3);
  EXPECT_EQ(fabric_links(far), 4);
  EXPECT_EQ(far.rail, 3);
  EXPECT_EQ(far.bandwidth_Bps, 50e9);
}

TEST(FatTreeTest, UplinksOfALeafHaveAQuarterOfItsPorts) {
  const Topology cluster = Fixture("cluster_2048_fat_tree_4to1");
  EXPECT_EQ(cluster.nodes(), 2048);
  const VertexId leaf = *cluster.FindVertex("fabric/leaf0");
  double down = 0;
  double up = 0;
  for (const LinkId id : cluster.leaving(leaf)) {
    const bool is_nic = cluster.vertex(cluster.to(id)).kind == VertexKind::kNic;
    (is_nic ? down : up) += cluster.bandwidth_Bps(id);
  }
  EXPECT_EQ(down, 32 * 25e9);
  EXPECT_EQ(up, 8 * 25e9);
}

}  // namespace
}  // namespace tidegate
