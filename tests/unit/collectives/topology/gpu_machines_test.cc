#include "tests/unit/collectives/topology/gpu_machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/topology/lint.h"
#include "collectives/topology/routes.h"
#include "tests/unit/collectives/topology/fixtures.h"

namespace tidegate {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Not;

Topology Describe(const SysfsTree& tree, const std::vector<NvmlGpu>& gpus,
                  const std::string& id = "n") {
  const Result<Topology> topology = DescribeGpus(tree, gpus, id);
  TIDEGATE_CHECK(topology.ok());
  return topology.value();
}

/// `topology`, of one node, under the name `id`.
Topology Renamed(const Topology& topology, const std::string& id) {
  TopologyParts parts = topology.parts();
  for (Vertex& vertex : parts.vertices) {
    const std::size_t slash = vertex.id.find('/');
    vertex.id = slash == std::string::npos ? id : id + vertex.id.substr(slash);
  }
  return Topology::Make(std::move(parts)).value();
}

/// Two such nodes whose rails are switches of their own.
Topology TwoOf(const Topology& node) {
  const std::vector<Topology> nodes = {Renamed(node, "a"), Renamed(node, "b")};
  std::vector<std::vector<int>> ranks(2);
  for (int rank = 0; rank < 2 * node.ranks(); ++rank)
    ranks[rank < node.ranks() ? 0 : 1].push_back(rank);
  const Result<Topology> cluster =
      JoinNodes(nodes, ranks, {.kind = FabricKind::kRailOptimised, .port_latency_s = 1e-6});
  TIDEGATE_CHECK(cluster.ok());
  return cluster.value();
}

/// What plans depend on is equal, though one was discovered and the other written by hand.
void ExpectAlike(const Topology& discovered, const Topology& written) {
  ASSERT_EQ(discovered.ranks(), written.ranks());
  const Topology clusters[] = {TwoOf(discovered), TwoOf(written)};
  Router of_discovered(clusters[0]);
  Router of_written(clusters[1]);
  for (int from = 0; from < discovered.ranks(); ++from) {
    for (int to = 0; to < 2 * discovered.ranks(); ++to) {
      const Route one = of_discovered.Find(from, to);
      const Route other = of_written.Find(from, to);
      EXPECT_EQ(one.path, other.path) << from << " to " << to;
      EXPECT_EQ(one.bandwidth_Bps, other.bandwidth_Bps) << from << " to " << to;
      EXPECT_EQ(one.rail, other.rail) << from << " to " << to;
    }
    const std::vector<Rail>& rails = of_discovered.Rails(from);
    const std::vector<Rail>& others = of_written.Rails(from);
    ASSERT_EQ(rails.size(), others.size());
    for (std::size_t i = 0; i < rails.size(); ++i) {
      EXPECT_EQ(rails[i].rail, others[i].rail) << from << ", " << i;
      EXPECT_EQ(rails[i].affinity, others[i].affinity) << from << ", " << i;
      EXPECT_EQ(rails[i].bandwidth_Bps, others[i].bandwidth_Bps) << from << ", " << i;
    }
  }
  EXPECT_EQ(of_discovered.NodeBandwidth(0), of_written.NodeBandwidth(0));
}

void ExpectReadsBack(const Topology& topology) {
  const Result<Topology> again = ParseTopology(FormatTopology(topology));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again.value(), topology);
}

/// Classes of the ways between all pairs of ranks.
std::vector<PathClass> Paths(const Topology& topology) {
  Router router(topology);
  std::vector<PathClass> paths;
  for (int from = 0; from < topology.ranks(); ++from) {
    for (int to = 0; to < topology.ranks(); ++to)
      if (from != to) paths.push_back(router.Find(from, to).path);
  }
  return paths;
}

TEST(DiscoveredDgxH100Test, GpusHave450GBpsAndTheirOwnNics) {
  SysfsTree tree;
  const Topology node = Describe(tree, AddDgxH100(tree));
  EXPECT_THAT(LintTopology(node), IsEmpty());
  EXPECT_THAT(Paths(node), Each(PathClass::kNvl));
  Router inside(node);
  for (int peer = 1; peer < 8; ++peer) EXPECT_EQ(inside.Find(0, peer).bandwidth_Bps, 450e9);
  const Topology cluster = TwoOf(node);
  EXPECT_THAT(LintTopology(cluster), IsEmpty());
  Router router(cluster);
  EXPECT_EQ(router.NodeBandwidth(0), 400e9);
  for (int rank = 0; rank < 8; ++rank) {
    const std::vector<Rail>& rails = router.Rails(rank);
    ASSERT_EQ(rails.size(), 8U) << "the NIC without a cable is no rail";
    EXPECT_EQ(cluster.vertex(rails[0].nic).id, "a/mlx5_" + std::to_string(rank));
    EXPECT_EQ(rails[0].affinity, PathClass::kPix);
    EXPECT_EQ(rails[0].bandwidth_Bps, 50e9);
    EXPECT_EQ(rails[1].affinity, PathClass::kPxn);
  }
  ExpectReadsBack(node);
  ExpectReadsBack(cluster);
}

TEST(DiscoveredDgxH100Test, ItIsTheMachineOfTheFile) {
  SysfsTree tree;
  ExpectAlike(Describe(tree, AddDgxH100(tree)), Fixture("dgx_h100"));
}

TEST(DiscoveredDgxH100Test, AGpuThatHasLostLinksIsSlowerToAllOthers) {
  SysfsTree tree;
  std::vector<NvmlGpu> gpus = AddDgxH100(tree);
  gpus[3].links.resize(16);
  const Topology node = Describe(tree, gpus);
  Router router(node);
  EXPECT_EQ(router.Find(0, 3).bandwidth_Bps, 400e9);
  EXPECT_EQ(router.Find(3, 7).bandwidth_Bps, 400e9);
  EXPECT_EQ(router.Find(0, 7).bandwidth_Bps, 450e9);
}

TEST(DiscoveredHgxA100Test, GpusHave300GBpsAndTwoNicsSeveralSwitchesAway) {
  SysfsTree tree;
  const Topology node = Describe(tree, AddHgxA100(tree));
  EXPECT_THAT(LintTopology(node), IsEmpty());
  EXPECT_THAT(Paths(node), Each(PathClass::kNvl));
  EXPECT_EQ(Router(node).Find(0, 7).bandwidth_Bps, 300e9);
  const Topology cluster = TwoOf(node);
  EXPECT_THAT(LintTopology(cluster), IsEmpty());
  Router router(cluster);
  for (int rank = 0; rank < 8; ++rank) {
    const std::vector<Rail>& rails = router.Rails(rank);
    ASSERT_EQ(rails.size(), 8U);
    EXPECT_EQ(rails[0].rail, rank) << "two GPUs of one switch prefer different NICs";
    EXPECT_EQ(rails[0].affinity, PathClass::kPxb);
    EXPECT_EQ(rails[1].affinity, PathClass::kPxb);
    EXPECT_EQ(rails[1].rail, rank ^ 1);
    EXPECT_GT(rails[2].affinity, PathClass::kPxb);
    EXPECT_EQ(rails[0].bandwidth_Bps, 25e9);
  }
  ExpectReadsBack(cluster);
}

TEST(DiscoveredHgxA100Test, ItIsTheMachineOfTheFile) {
  SysfsTree tree;
  ExpectAlike(Describe(tree, AddHgxA100(tree)), Fixture("hgx_a100"));
}

TEST(DiscoveredPcieServerTest, PathsFollowTheSwitchesAndSockets) {
  SysfsTree tree;
  const Topology node = Describe(tree, AddPcieServer(tree));
  EXPECT_THAT(LintTopology(node), IsEmpty());
  Router router(node);
  const double gen4 = PcieBandwidth(16, 16);
  EXPECT_NEAR(gen4, 31.5e9, 0.01e9);
  for (int from = 0; from < 8; ++from) {
    for (int to = 0; to < 8; ++to) {
      if (from == to) continue;
      PathClass expected = PathClass::kSys;
      if (from / 4 == to / 4) expected = from / 2 == to / 2 ? PathClass::kPix : PathClass::kPxb;
      const Route route = router.Find(from, to);
      EXPECT_EQ(route.path, expected) << from << " to " << to;
      EXPECT_EQ(route.bandwidth_Bps, gen4) << from << " to " << to;
    }
  }
  ExpectReadsBack(node);
}

TEST(DiscoveredPcieServerTest, TheNicOfTheSocketIsTheCloser) {
  SysfsTree tree;
  const Topology cluster = TwoOf(Describe(tree, AddPcieServer(tree)));
  EXPECT_THAT(LintTopology(cluster), IsEmpty());
  Router router(cluster);
  for (int rank = 0; rank < 8; ++rank) {
    const std::vector<Rail>& rails = router.Rails(rank);
    ASSERT_EQ(rails.size(), 2U);
    EXPECT_EQ(rails[0].rail, rank / 4);
    EXPECT_EQ(rails[0].affinity, rank % 4 < 2 ? PathClass::kPix : PathClass::kPxb);
    EXPECT_EQ(rails[0].bandwidth_Bps, 12.5e9);
    EXPECT_EQ(rails[1].affinity, PathClass::kSys);
  }
}

TEST(DiscoveredVirtualMachineTest, NvlinksAreSeenAndSwitchesAreNot) {
  SysfsTree tree;
  const Topology node = Describe(tree, AddVirtualMachine(tree));
  EXPECT_THAT(Paths(node), Each(PathClass::kNvl));
  EXPECT_EQ(Router(node).Find(0, 7).bandwidth_Bps, 300e9);
  const Topology cluster = TwoOf(node);
  Router router(cluster);
  for (int rank = 0; rank < 8; ++rank) {
    ASSERT_EQ(router.Rails(rank).size(), 8U);
    for (const Rail& rail : router.Rails(rank)) EXPECT_EQ(rail.affinity, PathClass::kPhb);
    EXPECT_EQ(router.Rails(rank)[0].rail, rank);
  }
  // What the emulated ports say is taken, and said: only a file or a measurement knows better.
  const std::vector<TopologyFinding> findings = LintTopology(node);
  ASSERT_THAT(findings, Not(IsEmpty()));
  EXPECT_THAT(findings[0].what, ::testing::HasSubstr("emulated bridge"));
  ExpectReadsBack(cluster);
}

TEST(DiscoveredVirtualMachineTest, ItIsTheMachineOfTheFile) {
  SysfsTree tree;
  ExpectAlike(Describe(tree, AddVirtualMachine(tree)), Fixture("vm_hidden_switches"));
}

TEST(DiscoveredVirtualMachineTest, WithoutNvlinksNothingIsCloserThanTheHostBridge) {
  SysfsTree tree;
  std::vector<NvmlGpu> gpus = AddVirtualMachine(tree);
  for (NvmlGpu& gpu : gpus) gpu.links.clear();
  const Topology node = Describe(tree, gpus);
  Router router(node);
  for (int peer = 1; peer < 8; ++peer)
    EXPECT_EQ(router.Find(0, peer).path, peer < 4 ? PathClass::kPhb : PathClass::kSys) << peer;
}

TEST(DiscoveredVirtualMachineTest, WhatHangsOnTheHostBridgeItselfIsThatFarFromAllNics) {
  SysfsTree tree;
  const std::vector<NvmlGpu> gpus = AddFlatVirtualMachine(tree);
  const Topology node = Describe(tree, gpus);
  EXPECT_THAT(LintTopology(node), IsEmpty()) << "no rate is stated, so none is absurd";
  EXPECT_THAT(Paths(node), Each(PathClass::kNvl));
  EXPECT_EQ(Router(node).Find(0, 7).bandwidth_Bps, 300e9);
  const Topology cluster = TwoOf(node);
  EXPECT_THAT(LintTopology(cluster), IsEmpty());
  Router router(cluster);
  for (int rank = 0; rank < 8; ++rank) {
    ASSERT_EQ(router.Rails(rank).size(), 8U);
    for (const Rail& rail : router.Rails(rank)) EXPECT_EQ(rail.affinity, PathClass::kPhb);
    EXPECT_EQ(router.Rails(rank)[0].bandwidth_Bps, 25e9);
  }
  ExpectReadsBack(cluster);
  std::vector<NvmlGpu> unlinked = gpus;
  for (NvmlGpu& gpu : unlinked) gpu.links.clear();
  EXPECT_THAT(Paths(Describe(tree, unlinked, "m")), Each(PathClass::kPhb));
}

}  // namespace
}  // namespace tidegate
