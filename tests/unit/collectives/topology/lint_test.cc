#include "collectives/topology/lint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/topology/fake_cluster.h"
#include "tests/unit/collectives/topology/fixtures.h"

namespace tidegate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::vector<std::string> Lint(const Topology& topology) {
  std::vector<std::string> lines;
  for (const TopologyFinding& finding : LintTopology(topology))
    lines.push_back(FormatFinding(finding));
  return lines;
}

/// Findings in a cluster of two nodes after `change` of its parts.
template <typename Change>
std::vector<std::string> LintAfter(Change change) {
  TopologyParts parts = FakeCluster(2, 2, {.rails = 2, .fabric = FabricKind::kRailOnly}).parts();
  change(parts);
  const Result<Topology> topology = Topology::Make(std::move(parts));
  EXPECT_TRUE(topology.ok()) << topology.status().message();
  return topology.ok() ? Lint(topology.value()) : std::vector<std::string>();
}

Link& LinkOf(TopologyParts& parts, const std::string& from, PathClass path) {
  return *std::ranges::find_if(parts.links, [&](const Link& link) {
    return parts.vertices[static_cast<std::size_t>(link.a)].id == from && link.path == path;
  });
}

TEST(LintTest, SoundMachinesHaveNoFindings) {
  EXPECT_THAT(Lint(FakeCluster(3, 4)), IsEmpty());
  for (const char* const name :
       {"laptop", "epyc_2s_nps4", "dgx_h100", "hgx_a100", "cloud_8gpu_32nic",
        "cluster_2048_rail_optimised", "cluster_2048_fat_tree_4to1"})
    EXPECT_THAT(Lint(Fixture(name)), IsEmpty()) << name;
}

TEST(LintTest, EmulatedBridgesOfAVirtualMachineAreFlagged) {
  EXPECT_THAT(
      Lint(Fixture("vm_hidden_switches")),
      ElementsAre(AllOf(StartsWith("vm/bridge0_0--vm/numa0: PCIe at 2.5e+08 byte/s, the 2.5 GT/s"),
                        HasSubstr("override the link"), HasSubstr("(and 63 like it)")),
                  AllOf(StartsWith("vm/nic0: a NIC of 2.5e+10 byte/s on a link of 2.5e+08 byte/s"),
                        HasSubstr("(and 7 like it)"))));
}

TEST(LintTest, FiguresInAnotherUnitAreFlagged) {
  EXPECT_THAT(LintAfter([](TopologyParts& parts) {
                LinkOf(parts, "node0/rank0", PathClass::kLoc).bandwidth_Bps = {50, 50};
              }),
              ElementsAre(AllOf(StartsWith("node0/rank0--node0: a LOC link of 50 byte/s"),
                                HasSubstr("400 Gbit/s are 50e9"))));
  EXPECT_THAT(LintAfter([](TopologyParts& parts) {
                LinkOf(parts, "node0/nic1", PathClass::kNet).latency_s = 2;
              }),
              ElementsAre(HasSubstr("a latency of 2 s; state seconds: 2 us are 2e-6")));
  EXPECT_THAT(LintAfter([](TopologyParts& parts) {
                LinkOf(parts, "node0", PathClass::kPix).bandwidth_Bps = {1e12, 1e12};
              }),
              ElementsAre(HasSubstr("a PIX link of 1e+12 byte/s, more than there is")));
}

TEST(LintTest, ANicFasterThanItsSlotIsFlagged) {
  EXPECT_THAT(LintAfter([](TopologyParts& parts) {
                LinkOf(parts, "node0", PathClass::kPix).bandwidth_Bps = {16e9, 16e9};
              }),
              ElementsAre(StartsWith("node0/nic0: a NIC of 5e+10 byte/s on a link of 1.6e+10")));
}

TEST(LintTest, RailsThatNoRouteJoinsAreFlagged) {
  // Node 0 has only its first rail left, node 1 only its second: links join them through nothing
  // but a third node's NICs.
  TopologyParts parts = FakeCluster(3, 1, {.rails = 2, .fabric = FabricKind::kRailOnly}).parts();
  std::erase_if(parts.links, [&](const Link& link) {
    const std::string& from = parts.vertices[static_cast<std::size_t>(link.a)].id;
    return link.path == PathClass::kNet && (from == "node0/nic1" || from == "node1/nic0");
  });
  const std::vector<std::string> found = Lint(Topology::Make(std::move(parts)).value());
  EXPECT_THAT(found, ElementsAre(StartsWith("node1/rank0: no route joins it with rank 0")));
}

TEST(LintTest, RanksWithoutANicAreFlaggedInAClusterOnly) {
  EXPECT_THAT(Lint(FakeCluster(1, 4)), IsEmpty());
  const Topology topology =
      ParseTopology(R"({"tidegate_topology": 1, "nodes": [{"id": "n", "count": 2, "vertices": [
        {"id": "rank", "kind": "rank", "count": 2,
         "link": {"path": "LOC", "latency_s": 0, "bandwidth_Bps": 1e9}}]}],
        "links": [{"from": "n0", "to": "n1", "path": "NET", "latency_s": 0,
                   "bandwidth_Bps": 1e9}]})")
          .value();
  EXPECT_THAT(Lint(topology), ElementsAre(AllOf(StartsWith("n0/rank0: it reaches no NIC"),
                                                HasSubstr("(and 3 like it)"))));
}

TEST(LintTest, ADeviceWithoutLinksIsFlagged) {
  EXPECT_THAT(
      LintAfter([](TopologyParts& parts) {
        Vertex gpu;
        gpu.kind = VertexKind::kGpu;
        gpu.id = "node1/gpu";
        gpu.parent = 5;
        while (parts.vertices[static_cast<std::size_t>(gpu.parent)].kind != VertexKind::kNode)
          --gpu.parent;
        parts.vertices.push_back(gpu);
      }),
      ElementsAre(HasSubstr("a gpu without a link")));
}

TEST(LintTest, DirectionsThatDifferAreFlagged) {
  EXPECT_THAT(LintAfter([](TopologyParts& parts) {
                LinkOf(parts, "node0/nic1", PathClass::kNet).bandwidth_Bps[1] = 5e9;
              }),
              ElementsAre(StartsWith("node0/nic1--fabric/rail1leaf0: its directions have 5e+10 and "
                                     "5e+09 byte/s")));
}

}  // namespace
}  // namespace tidegate
