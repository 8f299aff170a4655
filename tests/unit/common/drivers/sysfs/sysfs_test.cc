#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/drivers/nvml/nvml_api.h"
#include "common/drivers/sysfs/cpu_facts.h"
#include "common/drivers/sysfs/pci_facts.h"
#include "common/drivers/sysfs/sysfs_file.h"
#include "tests/unit/common/drivers/sysfs/sysfs_tree.h"

namespace tidegate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SysfsTest, ListsOfRangesAreRead) {
  EXPECT_THAT(ParseCpuList("0-3,8"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(ParseCpuList("5,1-2,2"), ElementsAre(1, 2, 5));
  EXPECT_THAT(ParseCpuList(""), IsEmpty());
  EXPECT_THAT(ParseCpuList("what"), IsEmpty());
  EXPECT_THAT(ParseCpuList("3-1"), IsEmpty());
  EXPECT_THAT(ParseCpuList("0-99999999"), IsEmpty());
  EXPECT_THAT(ParseCpuList("99999999999999999999,4-,7"), ElementsAre(4, 7));
}

TEST(SysfsTest, CoresKnowTheirThreadsCacheAndNumaNode) {
  SysfsTree tree;
  AddTwoSockets(tree);
  const Result<CpuFacts> read = ReadSysfsCpus(tree.root());
  ASSERT_TRUE(read.ok()) << read.status().message();
  const CpuFacts& facts = read.value();
  EXPECT_EQ(facts.numa,
            (std::vector<NumaFact>{
                {.numa = 0, .memory_bytes = std::uint64_t{1} << 30, .distance = {10, 21}},
                {.numa = 1, .memory_bytes = std::uint64_t{1} << 30, .distance = {21, 10}}}));
  ASSERT_EQ(facts.cores.size(), 4U);
  EXPECT_EQ(facts.cores[1], (CoreFact{.cpu = 1, .cpus = {1, 5}}));
  EXPECT_EQ(facts.cores[3],
            (CoreFact{.cpu = 3, .cpus = {3, 7}, .package = 1, .numa = 1, .cache = 1}));
}

TEST(SysfsTest, AContainerThatHidesMostHasOneNodeAndOneCache) {
  SysfsTree tree;
  tree.Write("sys/devices/system/cpu/online", "0,2-3");
  const CpuFacts facts = ReadSysfsCpus(tree.root()).value();
  EXPECT_EQ(facts.numa.size(), 1U);
  ASSERT_EQ(facts.cores.size(), 3U);
  EXPECT_EQ(facts.cores[2], (CoreFact{.cpu = 3, .cpus = {3}}));
}

TEST(SysfsTest, NoProcessorsIsAnErrorThatSaysWhatToDo) {
  SysfsTree tree;
  EXPECT_THAT(ReadSysfsCpus(tree.root()).status().message(),
              ::testing::HasSubstr("TIDEGATE_TOPO_FILE"));
}

TEST(SysfsTest, RatesOfPcieAreThoseOfItsGenerations) {
  EXPECT_NEAR(PcieBandwidth(2.5, 1), 0.25e9, 1);
  EXPECT_NEAR(PcieBandwidth(8, 16), 15.75e9, 0.01e9);
  EXPECT_NEAR(PcieBandwidth(32, 16), 63e9, 0.1e9);
  EXPECT_EQ(PcieBandwidth(0, 16), 0);
  EXPECT_EQ(PcieBandwidth(-1, -1), 0);
}

TEST(SysfsTest, DevicesKnowTheirBridgesAndPorts) {
  SysfsTree tree;
  const std::string root = "pci0000:10/0000:10:01.0";
  const std::string port = root + "/0000:11:00.0/0000:12:00.0";
  tree.AddPci(root, "0x060400", 0x8086, "16.0 GT/s PCIe", 16);
  tree.AddPci(root + "/0000:11:00.0", "0x060400", 0x10b5, "16.0 GT/s PCIe", 16);
  tree.AddPci(port, "0x060400", 0x10b5, "16.0 GT/s PCIe", 16);
  tree.AddPci(port + "/0000:13:00.0", "0x030200", 0x10de, "32.0 GT/s PCIe", 16, 1);
  const std::string nic = tree.AddPci(root + "/0000:11:00.0/0000:12:01.0/0000:14:00.0", "0x020700",
                                      0x15b3, "16.0 GT/s PCIe", 8, 1);
  tree.Write(nic + "/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  tree.Write(nic + "/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)");
  tree.Write(nic + "/infiniband/mlx5_0/ports/2/state", "1: DOWN");
  tree.Write(nic + "/infiniband/mlx5_0/ports/2/rate", "400 Gb/sec (4X NDR)");
  tree.AddPci("pci0000:00/0000:00:02.0", "0x030000", 0x1a03);
  const std::string eth = tree.AddPci("pci0000:00/0000:00:03.0", "0x020000", 0x1af4, "", 0, -1);
  tree.Write(eth + "/net/eth0/speed", "-1");
  tree.Write(eth + "/net/eth0/carrier", "1");

  const std::vector<PciFact> facts = ReadSysfsPci(tree.root()).value();
  ASSERT_EQ(facts.size(), 3U);  // no bridges, no BMC
  EXPECT_EQ(facts[0].names, (std::vector<std::string>{"eth0"}));
  EXPECT_TRUE(facts[0].is_up);
  EXPECT_EQ(facts[0].port_Bps, 0);
  EXPECT_EQ(facts[0].numa, -1);
  const PciFact& gpu = facts[1];
  EXPECT_EQ(gpu.kind, PciKind::kGpu);
  EXPECT_EQ(gpu.address, "0000:13:00.0");
  EXPECT_THAT(gpu.bridges, ElementsAre("0000:10:01.0", "0000:11:00.0", "0000:12:00.0"));
  // The slot is slower than the card.
  EXPECT_NEAR(gpu.bandwidth_Bps, 31.5e9, 0.1e9);
  EXPECT_NEAR(gpu.bridge_Bps[1], 31.5e9, 0.1e9);
  EXPECT_EQ(gpu.numa, 1);
  EXPECT_EQ(facts[2].kind, PciKind::kNic);
  EXPECT_EQ(facts[2].port_Bps, 50e9);
  EXPECT_NEAR(facts[2].bandwidth_Bps, 15.75e9, 0.1e9);
}

TEST(SysfsTest, AMachineWithoutPciHasNoDevices) {
  SysfsTree tree;
  EXPECT_THAT(ReadSysfsPci(tree.root()).value(), IsEmpty());
}

TEST(NvmlTest, AddressesAreWrittenAsSysfsDoes) {
  EXPECT_EQ(SysfsAddress("00000000:1A:00.0"), "0000:1a:00.0");
  EXPECT_EQ(SysfsAddress("0001ABCD:1A:00.0"), "1abcd:1a:00.0");
  EXPECT_EQ(SysfsAddress("0000:1a:00.0"), "0000:1a:00.0");
  EXPECT_EQ(SysfsAddress(""), "");
}

}  // namespace
}  // namespace tidegate
