// One orbit of ranks against all of them.

#include <gtest/gtest.h>

#include "collectives/topology/fake_cluster.h"
#include "tests/unit/collectives/simulator/algorithm_runs.h"

namespace tidegate {
namespace {

using testing::RunOf;

SimulatorOptions OfOrbit(int orbit) {
  SimulatorOptions options;
  options.orbit = orbit;
  return options;
}

void ExpectSame(double actual, double expected, const std::string& what) {
  EXPECT_NEAR(actual, expected, 1e-9 * expected) << what;
}

void ExpectOrbitEqualsAll(const Topology& topology, int orbit, const SimulationInput& input,
                          const std::string& what) {
  SimulatorOptions options;
  options.rates = {.core_Bps = 200e9, .memory_Bps = 900e9};
  const Result<Simulation> all = Simulate(topology, input, options);
  ASSERT_TRUE(all.ok()) << what << ": " << all.status().message();
  options.orbit = orbit;
  const Result<Simulation> one = Simulate(topology, input, options);
  ASSERT_TRUE(one.ok()) << what << ": " << one.status().message();
  ExpectSame(one.value().seconds, all.value().seconds, what);
  ASSERT_EQ(one.value().rank_seconds.size(), static_cast<std::size_t>(orbit));
  for (int rank = 0; rank < topology.ranks(); ++rank)
    ExpectSame(one.value().rank_seconds[static_cast<std::size_t>(rank % orbit)],
               all.value().rank_seconds[static_cast<std::size_t>(rank)],
               what + " rank " + std::to_string(rank));
  for (int tier = 0; tier < kTiers; ++tier)
    ExpectSame(one.value().tier_bytes[static_cast<std::size_t>(tier)],
               all.value().tier_bytes[static_cast<std::size_t>(tier)],
               what + " tier " + std::to_string(tier));
  for (std::size_t link = 0; link < all.value().link_bytes.size(); ++link)
    ExpectSame(one.value().link_bytes[link], all.value().link_bytes[link],
               what + " link " + topology.link_name(static_cast<LinkId>(link)));
  EXPECT_EQ(one.value().peak_stage_bytes, all.value().peak_stage_bytes);
}

void ExpectOrbitEqualsAllFor(const Topology& topology, int orbit, const std::string& what) {
  for (const char* name : {"column_ring", "column_bruck", "column_far_first", "ring", "bruck"}) {
    for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter}) {
      for (const std::size_t chunk : {std::size_t{0}, std::size_t{16384}})
        ExpectOrbitEqualsAll(topology, orbit, RunOf(topology, collective, name, 50000, chunk),
                             what + " " + name + " " + std::string(NameOf(collective)) + " chunk " +
                                 std::to_string(chunk));
    }
  }
}

TEST(SymmetryTest, ANodeStandsForAllBelowOneSwitch) {
  ExpectOrbitEqualsAllFor(FakeCluster(8, 4), 4, "8x4");
  ExpectOrbitEqualsAllFor(FakeCluster(5, 3, {.rails = 3}), 3, "5x3");
}

TEST(SymmetryTest, ALeafStandsForAllOfAFatTree) {
  ExpectOrbitEqualsAllFor(
      FakeCluster(12, 2,
                  {.fabric = FabricKind::kFatTree, .nodes_per_leaf = 3, .oversubscription = 4}),
      6, "fat tree");
}

TEST(SymmetryTest, ANodeStandsForAllOfARailOnlyGroup) {
  ExpectOrbitEqualsAllFor(
      FakeCluster(6, 4, {.rails = 4, .fabric = FabricKind::kRailOnly, .nodes_per_leaf = 0}), 4,
      "rail only");
}

TEST(SymmetryTest, ALeafStandsForAllOfARailOptimisedCluster) {
  ExpectOrbitEqualsAllFor(FakeCluster(8, 2,
                                      {.rails = 2,
                                       .fabric = FabricKind::kRailOptimised,
                                       .nodes_per_leaf = 4,
                                       .oversubscription = 2}),
                          8, "rail optimised");
}

TEST(SymmetryTest, ARankStandsForAllWhereRanksAreDealtInTurn) {
  const Topology block = FakeCluster(6, 3);
  const Topology dealt = Renumber(block, RoundRobinNumbers(block)).value();
  for (const char* name : {"ring", "bruck"})
    ExpectOrbitEqualsAll(dealt, 1, RunOf(dealt, Collective::kAllGather, name, 50000), name);
}

TEST(SymmetryTest, AMachineThatIsNotSymmetricIsRefused) {
  const Topology topology =
      FakeCluster(4, 2, {.fabric = FabricKind::kFatTree, .nodes_per_leaf = 2});
  const Status status = Simulator::Make(topology, OfOrbit(2)).status();  // Half a leaf.
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("shift of all ranks by 2"), std::string::npos)
      << status.message();
  EXPECT_EQ(Simulator::Make(topology, OfOrbit(3)).status().code(), StatusCode::kInvalidArgument);
}

TEST(SymmetryTest, RanksOfAnOrbitMayNotDiffer) {
  const Topology topology = FakeCluster(4, 2);
  Simulator simulator = std::move(Simulator::Make(topology, OfOrbit(2))).value();
  SimulationInput input = RunOf(topology, Collective::kAllGather, "ring", 1000);
  input.jitter_s = 1e-6;
  EXPECT_EQ(simulator.Run(input).status().code(), StatusCode::kInvalidArgument);
}

TEST(SymmetryTest, SchedulesThatDifferAfterTheShiftAreRefused) {
  const Topology topology = FakeCluster(4, 2);
  Simulator simulator = std::move(Simulator::Make(topology, OfOrbit(2))).value();
  // A pair's partner is to the right of one and to the left of the other.
  const Status pairs =
      simulator.Run(RunOf(topology, Collective::kAllGather, "column_recursive_doubling", 1000))
          .status();
  EXPECT_EQ(pairs.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(pairs.message().find("rank 2 does not do what rank 0 does"), std::string::npos)
      << pairs.message();
  // Of 100 bytes the first rank owns 64, the second 36, and the others none.
  const SimulationInput unequal = RunOf(topology, Collective::kAllReduce, "column_ring", 100);
  EXPECT_EQ(simulator.Run(unequal).status().code(), StatusCode::kInvalidArgument);
  SimulationInput blocks = RunOf(topology, Collective::kAllGather, "column_ring", 0);
  blocks.blocks.bytes = {1, 2, 1, 2, 1, 2, 2, 1};
  EXPECT_EQ(simulator.Run(blocks).status().code(), StatusCode::kInvalidArgument);
  blocks.blocks.bytes = {1, 2, 1, 2, 1, 2, 1, 2};
  EXPECT_TRUE(simulator.Run(blocks).ok());
}

TEST(SymmetryTest, ANodeStandsForAllOfAnAllReduceInEqualParts) {
  const Topology topology = FakeCluster(5, 3, {.rails = 3});
  for (const char* name : {"column_ring", "column_bruck", "direct"})
    ExpectOrbitEqualsAll(topology, 3,
                         RunOf(topology, Collective::kAllReduce, name, 64 * 15 * 100, 4096), name);
}

}  // namespace
}  // namespace tidegate
