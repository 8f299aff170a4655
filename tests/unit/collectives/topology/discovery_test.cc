#include "collectives/topology/discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "collectives/topology/fake_cluster.h"
#include "collectives/topology/hwloc_source.h"
#include "collectives/topology/lint.h"
#include "collectives/topology/routes.h"
#include "collectives/topology/topology_json.h"
#include "tests/unit/collectives/topology/gpu_machines.h"
#include "tests/unit/common/drivers/sysfs/sysfs_tree.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two sockets, on each a PCIe switch with a GPU and a NIC of 200 Gbit/s.
void AddGpuServer(SysfsTree& tree) {
  AddTwoSockets(tree);
  for (int socket = 0; socket < 2; ++socket) {
    const std::string domain = "000" + std::to_string(socket);
    const std::string root = "pci" + domain + ":00/" + domain + ":00:01.0";
    const std::string top = root + "/" + domain + ":01:00.0";
    const std::string gen4 = "16.0 GT/s PCIe";
    tree.AddPci(root, "0x060400", 0x8086, gen4, 16);
    tree.AddPci(top, "0x060400", 0x10b5, gen4, 16);
    for (int port = 0; port < 2; ++port) {
      const std::string down = top + "/" + domain + ":02:0" + std::to_string(port) + ".0";
      tree.AddPci(down, "0x060400", 0x10b5, gen4, 16);
      const std::string device = tree.AddPci(
          down + "/" + domain + ":0" + std::to_string(3 + port) + ":00.0",
          port == 0 ? "0x030200" : "0x020700", port == 0 ? 0x10de : 0x15b3, gen4, 16, socket);
      if (port == 0) continue;
      const std::string name = "/infiniband/mlx5_" + std::to_string(socket) + "/ports/1";
      tree.Write(device + name + "/state", "4: ACTIVE");
      tree.Write(device + name + "/rate", "200 Gb/sec (4X HDR)");
    }
  }
}

FakeNvml TwoJoinedGpus() {
  std::vector<NvmlGpu> gpus(2);
  for (int i = 0; i < 2; ++i) {
    NvmlGpu& gpu = gpus[static_cast<std::size_t>(i)];
    gpu.index = i;
    gpu.address = SysfsAddress("0000000" + std::to_string(i) + ":03:00.0");
    gpu.memory_Bps = 2e12;
    const std::string peer = SysfsAddress("0000000" + std::to_string(1 - i) + ":03:00.0");
    for (int link = 0; link < 4; ++link)
      gpu.links.push_back({.to = NvlinkFact::To::kGpu, .address = peer, .bandwidth_Bps = 25e9});
  }
  return FakeNvml(std::move(gpus));
}

MachineFacts Facts(const SysfsTree& tree, NvmlApi* nvml = nullptr) {
  DiscoverySources sources = SystemSources(tree.root());
  sources.nvml = nvml;
  Result<MachineFacts> facts = ReadMachine(sources);
  EXPECT_TRUE(facts.ok()) << facts.status().message();
  return facts.ok() ? std::move(facts).value() : MachineFacts();
}

Topology Describe(const MachineFacts& facts, const std::vector<RankSite>& sites, int usable = 64,
                  const std::string& id = "n") {
  Result<Topology> topology = DescribeMachine(facts, id, sites, usable);
  EXPECT_TRUE(topology.ok()) << topology.status().message();
  return topology.ok() ? std::move(topology).value() : FakeCluster(1, 1);
}

std::string SiteOf(const Topology& topology, int rank) {
  const VertexId at = topology.rank_vertex(rank);
  return topology.vertex(topology.to(topology.leaving(at)[0])).id;
}

TEST(DiscoveryTest, RanksHangOnTheSmallestPlaceThatHasTheirProcessors) {
  SysfsTree tree;
  AddTwoSockets(tree);
  const Topology topology = Describe(
      Facts(tree), {{.cpus = {1}}, {.cpus = {1, 5}}, {.cpus = {2, 3}}, {}, {.cpus = {0, 7}}});
  EXPECT_EQ(SiteOf(topology, 0), "n/core1");
  EXPECT_EQ(SiteOf(topology, 1), "n/core1");  // two threads of a core
  EXPECT_EQ(SiteOf(topology, 2), "n/cache1");
  EXPECT_EQ(SiteOf(topology, 3), "n");
  EXPECT_EQ(SiteOf(topology, 4), "n");
  Router router(topology);
  EXPECT_EQ(router.Find(0, 1).path, PathClass::kLoc);
  EXPECT_EQ(router.Find(0, 2).path, PathClass::kSys);
}

TEST(DiscoveryTest, DistancesBetweenNumaNodesBecomeLatencies) {
  SysfsTree tree;
  AddTwoSockets(tree);
  const Topology topology = Describe(Facts(tree), {{.cpus = {0}}});
  for (const Link& link : topology.links()) {
    if (link.path != PathClass::kSys) continue;
    EXPECT_DOUBLE_EQ(link.latency_s, 1.1e-7);  // distance 21
  }
}

TEST(DiscoveryTest, ACpuQuotaIsSharedByTheRanks) {
  SysfsTree tree;
  AddTwoSockets(tree);
  const std::vector<RankSite> sites(4);
  const MachineFacts facts = Facts(tree);
  Topology topology = Describe(facts, sites, 4);
  const double whole = Router(topology).Find(0, 1).bandwidth_Bps;
  topology = Describe(facts, sites, 1);
  EXPECT_DOUBLE_EQ(Router(topology).Find(0, 1).bandwidth_Bps, whole / 4);
}

TEST(DiscoveryTest, DevicesBelowOneSwitchAreOneHopApart) {
  SysfsTree tree;
  AddGpuServer(tree);
  FakeNvml nvml = TwoJoinedGpus();
  const MachineFacts facts = Facts(tree, &nvml);
  const std::vector<RankSite> sites = {{.gpu_address = "0000:03:00.0"},
                                       {.gpu_address = "0001:03:00.0"}};
  const std::vector<Topology> nodes = {Describe(facts, sites, 8, "a"),
                                       Describe(facts, sites, 8, "b")};
  const std::vector<std::vector<int>> ranks = {{0, 2}, {1, 3}};
  const Result<Topology> joined =
      JoinNodes(nodes, ranks, {.kind = FabricKind::kRailOptimised, .port_latency_s = 1e-6});
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  const Topology& cluster = joined.value();
  EXPECT_EQ(cluster.nodes(), 2);
  EXPECT_EQ(cluster.node_of(1), 1);
  EXPECT_THAT(LintTopology(cluster), IsEmpty());
  Router router(cluster);
  EXPECT_EQ(router.Find(0, 2).path, PathClass::kNvl);
  EXPECT_EQ(router.Find(0, 2).bandwidth_Bps, 100e9);
  const std::vector<Rail>& rails = router.Rails(2);
  ASSERT_EQ(rails.size(), 2U);
  EXPECT_EQ(cluster.vertex(rails[0].nic).id, "a/mlx5_1");
  EXPECT_EQ(rails[0].affinity, PathClass::kPix);
  EXPECT_EQ(rails[0].bandwidth_Bps, 25e9);
  EXPECT_EQ(rails[1].affinity, PathClass::kPxn);
  EXPECT_EQ(router.Find(2, 3).rail, 1);
}

TEST(DiscoveryTest, WithoutNvmlGpusReachEachOtherThroughTheHost) {
  SysfsTree tree;
  AddGpuServer(tree);
  FakeNvml nvml(Status(StatusCode::kUnsupported, "no driver"));
  const Topology topology = Describe(
      Facts(tree, &nvml), {{.gpu_address = "0000:03:00.0"}, {.gpu_address = "0001:03:00.0"}});
  EXPECT_EQ(Router(topology).Find(0, 1).path, PathClass::kSys);
}

TEST(DiscoveryTest, GpusThatOnlyNvmlKnowsHangOnTheNode) {
  SysfsTree tree;
  AddTwoSockets(tree);
  FakeNvml nvml = TwoJoinedGpus();
  const Topology topology = Describe(
      Facts(tree, &nvml), {{.gpu_address = "0000:03:00.0"}, {.gpu_address = "0001:03:00.0"}});
  EXPECT_EQ(Router(topology).Find(0, 1).path, PathClass::kNvl);
}

TEST(DiscoveryTest, DiscoveredMachinesAreWrittenAndReadBack) {
  SysfsTree tree;
  AddGpuServer(tree);
  FakeNvml nvml = TwoJoinedGpus();
  const Topology topology = Describe(Facts(tree, &nvml), {{.gpu_address = "0000:03:00.0"}, {}});
  const Result<Topology> again = ParseTopology(FormatTopology(topology));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again.value(), topology);
}

TEST(DiscoveryTest, MachinesThatShowNoNicAreJoinedAllTheSame) {
  SysfsTree tree;
  AddTwoSockets(tree);
  const MachineFacts facts = Facts(tree);
  const std::vector<Topology> nodes = {Describe(facts, {{}}, 8, "a"),
                                       Describe(facts, {{.cpus = {3}}}, 8, "b")};
  const std::vector<std::vector<int>> ranks = {{0}, {1}};
  const Result<Topology> cluster = JoinNodes(nodes, ranks, {});
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  EXPECT_EQ(Router(cluster.value()).Find(0, 1).path, PathClass::kNet);
}

TEST(DiscoveryTest, SitesThatAreNotThereAreRefused) {
  SysfsTree tree;
  AddTwoSockets(tree);
  const MachineFacts facts = Facts(tree);
  const auto error = [&](const RankSite& site) {
    return DescribeMachine(facts, "n", std::vector{site}, 1).status().message();
  };
  EXPECT_THAT(error({.gpu_address = "0000:99:00.0"}), HasSubstr("runs on GPU 0000:99:00.0"));
  EXPECT_THAT(error({.cpus = {77}}), HasSubstr("may use no processor"));
  EXPECT_FALSE(DescribeMachine(facts, "a/b", std::vector<RankSite>(1), 1).ok());
}

TEST(DiscoveryTest, ThisMachineCanBeDescribed) {
  const Result<MachineFacts> facts = ReadMachine(SystemSources());
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  const Topology topology = Describe(facts.value(), std::vector<RankSite>(4), 2);
  EXPECT_EQ(topology.ranks(), 4);
}

TEST(DiscoveryTest, HwlocAndSysfsAgree) {
  const Result<CpuFacts> hwloc = ReadHwlocCpus();
  if (!hwloc.ok()) GTEST_SKIP() << hwloc.status().message();
  const Result<CpuFacts> sysfs = ReadSysfsCpus();
  if (!sysfs.ok()) GTEST_SKIP() << sysfs.status().message();
  EXPECT_EQ(hwloc.value().cores.size(), sysfs.value().cores.size());
  for (std::size_t i = 0; i < sysfs.value().cores.size(); ++i) {
    EXPECT_EQ(hwloc.value().cores[i].cpus, sysfs.value().cores[i].cpus);
    EXPECT_EQ(hwloc.value().cores[i].cache, sysfs.value().cores[i].cache);
  }
}

/// A machine that hwloc makes up, for as long as this lives.
class SyntheticMachine {
 public:
  explicit SyntheticMachine(const char* description) {
    setenv("HWLOC_SYNTHETIC", description, /*overwrite=*/1);
  }
  ~SyntheticMachine() { unsetenv("HWLOC_SYNTHETIC"); }
  SyntheticMachine(const SyntheticMachine&) = delete;
  SyntheticMachine& operator=(const SyntheticMachine&) = delete;
};

TEST(DiscoveryTest, WhatHwlocSaysOfAMachineIsInItsTopology) {
  const SyntheticMachine machine("pack:2 numa:2 l3:2 l2:4 core:1 pu:2");
  const Result<CpuFacts> read = ReadHwlocCpus();
  // "built without hwloc.h", or no library here.
  if (!read.ok()) GTEST_SKIP() << read.status().message();
  const CpuFacts& cpus = read.value();
  ASSERT_EQ(cpus.numa.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(cpus.numa[static_cast<std::size_t>(i)].numa, i);
    EXPECT_EQ(cpus.numa[static_cast<std::size_t>(i)].memory_bytes, std::uint64_t{1} << 30);
  }
  ASSERT_EQ(cpus.cores.size(), 32u);
  for (int i = 0; i < 32; ++i) {
    const CoreFact expected{.cpu = 2 * i,
                            .cpus = {2 * i, 2 * i + 1},
                            .package = i / 16,
                            .numa = i / 8,
                            .cache = i / 4};  // The last level: not the L2 of each core.
    EXPECT_EQ(cpus.cores[static_cast<std::size_t>(i)], expected) << "core " << i;
  }

  const Result<MachineFacts> facts = ReadMachine({.cpus = SystemSources().cpus});
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  const Topology topology = Describe(
      facts.value(), {{.cpus = {9}}, {.cpus = {8, 15}}, {.cpus = {16, 31}}, {.cpus = {31, 32}}});
  std::map<VertexKind, int> count;
  for (const Vertex& vertex : topology.vertices()) ++count[vertex.kind];
  EXPECT_EQ(count[VertexKind::kNuma], 4);
  EXPECT_EQ(count[VertexKind::kCache], 8);
  EXPECT_EQ(count[VertexKind::kCore], 32);
  EXPECT_EQ(SiteOf(topology, 0), "n/core8");
  EXPECT_EQ(SiteOf(topology, 1), "n/cache1");
  EXPECT_EQ(SiteOf(topology, 2), "n/numa1");
  EXPECT_EQ(SiteOf(topology, 3), "n");
}

TEST(SettingsTest, APartialFileAmendsAndADumpIsWritten) {
  SysfsTree tree;
  tree.Write("topo.json", R"({"tidegate_topology": 1, "partial": true, "name": "mine"})");
  Config config;
  config.topo_file = tree.root() + "/topo.json";
  config.topo_dump_file = tree.root() + "/dump.json";
  const Topology discovered = FakeCluster(2, 2);
  const TopologySettings settings = TopologySettings::Read(config).value();
  const Result<Topology> topology = settings.Apply(discovered);
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_EQ(topology.value().name(), "mine");
  EXPECT_FALSE(std::filesystem::exists(config.topo_dump_file));
  ASSERT_TRUE(settings.Dump(topology.value()).ok());
  EXPECT_EQ(LoadTopology(config.topo_dump_file).value(), topology.value());
}

TEST(SettingsTest, TheFileIsReadOnce) {
  SysfsTree tree;
  tree.Write("topo.json", R"({"tidegate_topology": 1, "partial": true, "name": "before"})");
  Config config;
  config.topo_file = tree.root() + "/topo.json";
  const TopologySettings settings = TopologySettings::Read(config).value();
  tree.Write("topo.json", "spoilt");
  EXPECT_EQ(settings.Apply(FakeCluster(1, 2)).value().name(), "before");
}

TEST(SettingsTest, AFullFileMustDescribeTheGroupsRanks) {
  SysfsTree tree;
  Config config;
  config.topo_file = tree.root() + "/topo.json";
  ASSERT_TRUE(DumpTopology(FakeCluster(1, 3), config.topo_file).ok());
  const TopologySettings settings = TopologySettings::Read(config).value();
  EXPECT_EQ(settings.Apply(FakeCluster(3, 1)).value(), FakeCluster(1, 3));
  EXPECT_THAT(settings.Apply(FakeCluster(2, 2)).status().message(),
              HasSubstr("describes 3 ranks, the group has 4"));
  config.topo_file = tree.root() + "/none.json";
  EXPECT_THAT(TopologySettings::Read(config).status().message(),
              HasSubstr("TIDEGATE_TOPO_FILE: cannot read"));
}

TEST(NodeIdentityTest, TheSettingReplacesTheBootId) {
  SysfsTree tree;
  tree.Write("proc/sys/kernel/random/boot_id", "0d5c-boot");
  EXPECT_EQ(NodeIdentity(Config(), tree.root()).value(), "0d5c-boot");
  Config config;
  config.node_id = "second";
  EXPECT_EQ(NodeIdentity(config, tree.root()).value(), "second");
  EXPECT_THAT(NodeIdentity(Config(), tree.root() + "/none").status().message(),
              HasSubstr("TIDEGATE_NODE_ID"));
}

TEST(NodeIdentityTest, ContainersOfOneKernelWithoutSharedMemoryAreSeparateNodes) {
  // Ranks 0 and 2 in one container, 1 and 4 in another, rank 3 on another machine.
  const std::vector<std::string> identities = {"x", "x", "x", "y", "x"};
  const std::vector<int> container = {0, 1, 0, 2, 1};
  std::vector<std::string> confirmed;
  for (int self = 0; self < 5; ++self) {
    const SharedMemoryProbe probe = [&](std::span<const int> ranks) {
      std::vector<bool> shared;
      for (const int rank : ranks)
        shared.push_back(container[static_cast<std::size_t>(rank)] ==
                         container[static_cast<std::size_t>(self)]);
      return Result<std::vector<bool>>(shared);
    };
    confirmed.push_back(ConfirmIdentity(identities, self, probe).value());
  }
  EXPECT_EQ(confirmed, (std::vector<std::string>{"x#0", "x#1", "x#0", "y#3", "x#1"}));
  const std::vector<int> expected = {0, 1, 0, 2, 1};
  EXPECT_EQ(PlaceByIdentity(confirmed).value(), Placement::Make(expected).value());
}

}  // namespace
}  // namespace tidegate
