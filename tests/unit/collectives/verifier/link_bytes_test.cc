// What the verifier says that a link carries is what the simulator has it carry.

#include "collectives/verifier/link_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/simulator/simulator.h"
#include "collectives/topology/fake_cluster.h"
#include "tests/unit/collectives/topology/fixtures.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kBlockBytes = 1088;  // Aligned, so that tensors are cut into such blocks.
constexpr std::int64_t kChunkBytes = 256;

Topology Cluster(const std::vector<int>& ranks_of_node, FabricKind fabric, int nodes_per_leaf,
                 const std::vector<double>& nics) {
  return MakeFakeCluster(
             ranks_of_node,
             {.nic_bandwidths_Bps = nics, .fabric = fabric, .nodes_per_leaf = nodes_per_leaf})
      .value();
}

std::vector<Topology> Machines() {
  std::vector<Topology> machines;
  for (const char* name : {"laptop", "epyc_2s_nps4", "dgx_h100", "hgx_a100", "vm_hidden_switches"})
    machines.push_back(Fixture(name));
  machines.push_back(Cluster({2, 2, 2}, FabricKind::kSingleSwitch, 3, {25e9}));
  machines.push_back(Cluster({3, 1}, FabricKind::kSingleSwitch, 2, {25e9}));
  machines.push_back(Cluster({2, 2, 2, 2}, FabricKind::kFatTree, 2, {25e9, 10e9}));
  machines.push_back(Cluster({4, 4}, FabricKind::kRailOptimised, 2, {25e9, 25e9, 10e9}));
  machines.push_back(Cluster({2, 2, 2}, FabricKind::kRailOnly, 1, {25e9, 25e9}));
  return machines;
}

/// Of all executed ranks, with the claims held to.
Result<Report> VerifyOn(const Topology& topology, const NamedAlgorithm& algorithm,
                        const ClaimOf& claim_of) {
  const AlgorithmInput input{.ranks = topology.ranks(), .placement = &topology.placement()};
  return Verify({.collective = algorithm.collective,
                 .placement = &topology.placement(),
                 .chunk_bytes = kChunkBytes,
                 .sizes = {kBlockBytes},
                 .topology = &topology},
                algorithm.build.Programs(input), claim_of);
}

TEST(LinkBytesTest, AreThoseOfTheSimulatorForEveryAlgorithm) {
  int compared = 0;
  int divided = 0;  // Over several NICs.
  for (const Topology& topology : Machines()) {
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (!algorithm.serves(topology.placement())) continue;
      const AlgorithmInput input{.ranks = topology.ranks(), .placement = &topology.placement()};
      const Result<Report> report = VerifyOn(topology, algorithm, algorithm.build.ClaimsFor(input));
      ASSERT_TRUE(report.ok()) << report.status().message();
      std::vector<RankBytes> moved = report.value().put;
      moved.insert(moved.end(), report.value().read.begin(), report.value().read.end());
      SimulationInput simulated;
      simulated.schedule = algorithm.build.Programs(input);
      simulated.blocks = {{static_cast<std::uint64_t>(kBlockBytes * simulated.schedule(0).parts)}};
      simulated.chunk_bytes = kChunkBytes;
      const std::vector<double> undivided = BytesPerLink(topology, moved, false);
      for (const bool striped : {false, true}) {
        SimulatorOptions options;
        options.striped = striped;
        const Result<Simulation> run = Simulate(topology, simulated, options);
        ASSERT_TRUE(run.ok()) << run.status().message();
        const std::vector<double> bytes = BytesPerLink(topology, moved, striped);
        for (LinkId link = 0; link < topology.link_end(); ++link) {
          const auto at = static_cast<std::size_t>(link);
          EXPECT_NEAR(bytes[at], run.value().link_bytes[at], 1e-6)
              << topology.name() << ": " << topology.link_name(link) << " in "
              << NameOf(algorithm.collective) << " " << algorithm.name;
          if (bytes[at] > 0) ++compared;
          if (bytes[at] != undivided[at]) ++divided;
        }
      }
    }
  }
  EXPECT_GT(compared, 10'000);
  EXPECT_GT(divided, 1'000);
}

/// What crosses the port of a node's only NIC follows from the collective.
TEST(LinkBytesTest, OfAPortAreWhatTheNodeLacks) {
  const Topology topology = Cluster({2, 2, 2}, FabricKind::kSingleSwitch, 3, {25e9});
  const NamedAlgorithm& column = *FindAlgorithm(Collective::kAllGather, "column_ring");
  const AlgorithmInput input{.ranks = 6, .placement = &topology.placement()};
  const Result<Report> report = VerifyOn(topology, column, column.build.ClaimsFor(input));
  ASSERT_TRUE(report.ok()) << report.status().message();
  const std::vector<double> bytes = BytesPerLink(topology, report.value().put);
  int ports = 0;
  for (LinkId link = 0; link < topology.link_end(); ++link) {
    if (topology.link(link).path != PathClass::kNet) continue;
    EXPECT_EQ(bytes[static_cast<std::size_t>(link)], 4 * kBlockBytes) << topology.link_name(link);
    ++ports;
  }
  EXPECT_EQ(ports, 6);  // In and out of three nodes.
}

TEST(LinkBytesTest, ARejectedClaimNamesALinkThatCarriesOthers) {
  const Topology topology = Cluster({2, 2}, FabricKind::kSingleSwitch, 2, {25e9});
  const NamedAlgorithm& direct = *FindAlgorithm(Collective::kAllGather, "direct");
  const AlgorithmInput input{.ranks = 4, .placement = &topology.placement()};
  const ClaimOf claim_of = direct.build.ClaimsFor(input);
  const ClaimOf less = [&](int rank) {
    std::vector<WireClaim> claims = claim_of(rank);
    if (rank == 2) claims.pop_back();
    return claims;
  };
  EXPECT_TRUE(VerifyOn(topology, direct, claim_of).ok());
  // Two ranks send two blocks each, of which one is not claimed.
  EXPECT_THAT(VerifyOn(topology, direct, less).status().message(),
              HasSubstr("claims to put 0 bytes to rank 1, of another node; its steps put 1088; "
                        "link node0/nic0--fabric/switch carries 4352 bytes from fabric/switch to "
                        "node0/nic0, claimed are 3264"));
}

TEST(LinkBytesTest, ATopologyOfAnotherPlacementIsRefused) {
  const Topology topology = Cluster({2, 2}, FabricKind::kSingleSwitch, 2, {25e9});
  const NamedAlgorithm& direct = *FindAlgorithm(Collective::kAllGather, "direct");
  const Placement placement = Placement::OneNode(4);
  const AlgorithmInput input{.ranks = 4, .placement = &placement};
  EXPECT_THAT(VerifyPlan(Collective::kAllGather, placement, 0, direct.build.Programs(input),
                         direct.build.ClaimsFor(input), &topology)
                  .message(),
              HasSubstr("places ranks otherwise"));
}

}  // namespace
}  // namespace tidegate
