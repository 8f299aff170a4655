#include "collectives/simulator/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/schedule/builder.h"
#include "collectives/simulator/faults.h"
#include "collectives/topology/fake_cluster.h"
#include "tests/unit/collectives/simulator/algorithm_runs.h"
#include "tests/unit/common/test_extent.h"

namespace tidegate {
namespace {

using ::testing::HasSubstr;
using testing::RunOf;

constexpr double kNear = 1e-6;
constexpr double kFar = 5e-6;

Simulation Ran(const Topology& topology, const SimulationInput& input) {
  const Result<Simulation> simulation = Simulate(topology, input);
  EXPECT_TRUE(simulation.ok()) << simulation.status().message();
  return simulation.ok() ? simulation.value() : Simulation();
}

/// A schedule of rank `rank` of two that `write` adds the steps of.
template <typename Write>
Schedule Written(int rank, Write write) {
  ScheduleBuilder builder("written", Collective::kAllGather, rank, 2);
  write(builder);
  return builder.Build();
}

/// Rank 0 puts 1 MB to rank 1 and says so; then what `more` adds.
template <typename More>
SimulationInput OnePut(More more) {
  SimulationInput input;
  input.blocks = {{1 << 20}};
  input.chunk_bytes = 1 << 20;
  input.schedule = [more](int rank) {
    return Written(rank, [&](ScheduleBuilder& builder) {
      if (rank == 0) builder.Put(Stage(1, 0), Input(0));
      more(rank, builder);
    });
  };
  return input;
}

TEST(SimulatorTest, ARankThatPutsDoesNotWaitForIt) {
  const Topology topology = FakeCluster(2, 1);
  const Simulation run = Ran(topology, OnePut([](int, ScheduleBuilder&) {}));
  EXPECT_EQ(run.rank_seconds[0], 0);
}

TEST(SimulatorTest, ASignalArrivesBehindThePutsToTheSameRank) {
  const Topology topology = FakeCluster(2, 1);
  const Simulation run = Ran(topology, OnePut([](int rank, ScheduleBuilder& builder) {
                               if (rank == 0) builder.Signal(0, kLongestBlock, 0, 1);
                               if (rank == 1) builder.Wait(0, 0, kLongestBlock);
                             }));
  EXPECT_DOUBLE_EQ(run.rank_seconds[1], (1 << 20) / 50e9 + kFar);
}

TEST(SimulatorTest, ASignalBeforeAPutDoesNotWaitForIt) {
  const Topology topology = FakeCluster(2, 1);
  SimulationInput input = OnePut([](int, ScheduleBuilder&) {});
  input.schedule = [](int rank) {
    return Written(rank, [&](ScheduleBuilder& builder) {
      if (rank == 1) builder.Wait(0, 0, kLongestBlock);
      if (rank == 0) builder.Signal(0, kLongestBlock, 0, 1);
      if (rank == 0) builder.Put(Stage(1, 0), Input(0));
    });
  };
  EXPECT_DOUBLE_EQ(Ran(topology, input).rank_seconds[1], kFar);
}

TEST(SimulatorTest, ASignalInsideANodeTakesItsLatency) {
  const Topology topology = FakeCluster(1, 2);
  SimulationInput input = OnePut([](int, ScheduleBuilder&) {});
  input.schedule = [](int rank) {
    return Written(rank, [&](ScheduleBuilder& builder) {
      if (rank == 0) builder.Signal(0, kLongestBlock);
      if (rank == 1) builder.Wait(kAllPeers, 0, kLongestBlock);
    });
  };
  EXPECT_DOUBLE_EQ(Ran(topology, input).rank_seconds[1], kNear);
}

TEST(SimulatorTest, ALateRankHoldsUpThoseThatWaitForIt) {
  const Topology topology = FakeCluster(4, 1);
  SimulationInput input = RunOf(topology, Collective::kAllGather, "ring", 1 << 16);
  const double together = Ran(topology, input).seconds;
  input.start_s = {0, 0, 1e-3, 0};
  const Simulation late = Ran(topology, input);
  EXPECT_NEAR(late.seconds, 1e-3 + together, 1e-12);
}

TEST(SimulatorTest, JitterIsReproducibleAndOnlyDelays) {
  const Topology topology = FakeCluster(4, 2);
  SimulationInput input = RunOf(topology, Collective::kAllGather, "column_bruck", 1 << 16, 8192);
  const double exact = Ran(topology, input).seconds;
  input.jitter_s = 2e-6;
  const double first = Ran(topology, input).seconds;
  EXPECT_GT(first, exact);
  EXPECT_EQ(Ran(topology, input).seconds, first);
  input.seed = 1;
  EXPECT_NE(Ran(topology, input).seconds, first);
}

LinkId PortOf(const Topology& topology, const std::string& nic) {
  for (const LinkId link : topology.leaving(*topology.FindVertex(nic)))
    if (topology.vertex(topology.to(link)).kind == VertexKind::kSwitch) return link;
  return kNone;
}

TEST(SimulatorTest, ASlowNicSlowsARingToItsRate) {
  const Topology topology = FakeCluster(4, 1);
  const LinkFault fault{PortOf(topology, "node2/nic0"), 0.5};
  const Topology slow = WithFaults(topology, {&fault, 1}).value();
  const SimulationInput input = RunOf(slow, Collective::kAllGather, "ring", 1 << 20);
  // Some block crosses the slow link in each round, and each crosses it once.
  EXPECT_NEAR(Ran(slow, input).seconds, 3 * (kFar + (1 << 20) / 25e9), 3e-6 + 2e-5);
  EXPECT_GT(Ran(slow, input).seconds, 1.5 * Ran(topology, input).seconds);
}

TEST(SimulatorTest, ADeadNicIsRoutedAround) {
  const Topology topology = FakeCluster(2, 1, {.rails = 2, .fabric = FabricKind::kRailOnly});
  const LinkFault fault{PortOf(topology, "node1/nic0"), 0};
  const Topology dead = WithFaults(topology, {&fault, 1}).value();
  const SimulationInput input = RunOf(dead, Collective::kAllGather, "ring", 1 << 20);
  const Simulation whole = Ran(topology, input);
  const Simulation half = Ran(dead, input);
  EXPECT_NEAR(half.seconds - kFar, 2 * (whole.seconds - kFar), 1e-4 * half.seconds);
  for (LinkId link = 0; link < dead.link_end(); ++link)
    if (dead.link_name(link).find("nic0") != std::string::npos) {
      EXPECT_EQ(half.link_bytes[static_cast<std::size_t>(link)], 0) << dead.link_name(link);
    }
}

TEST(SimulatorTest, FaultsOfLinksThatDoNotExistAreRefused) {
  const Topology topology = FakeCluster(2, 1);
  const LinkFault missing{1000, 0.5};
  EXPECT_EQ(WithFaults(topology, {&missing, 1}).status().code(), StatusCode::kInvalidArgument);
  const LinkFault faster{0, 2};
  EXPECT_THAT(WithFaults(topology, {&faster, 1}).status().message(), HasSubstr("at most 1"));
  const LinkFault cut{PortOf(topology, "node1/nic0"), 0};
  EXPECT_EQ(WithFaults(topology, {&cut, 1}).status().code(), StatusCode::kInvalidArgument);
}

TEST(SimulatorTest, BytesOfTheWireAreThoseThatMustCross) {
  const Topology topology = FakeCluster(4, 2);
  const Simulation run =
      Ran(topology, RunOf(topology, Collective::kAllGather, "column_ring", 1000));
  const double total = 8 * 1000;
  EXPECT_EQ(run.tier_bytes[static_cast<std::size_t>(Tier::kLeaf)], 4 * total * 3 / 4);
  EXPECT_EQ(run.tier_bytes[static_cast<std::size_t>(Tier::kSpine)], 0);
  EXPECT_EQ(run.link_bytes[static_cast<std::size_t>(PortOf(topology, "node0/nic0"))],
            total * 3 / 4);
  EXPECT_GT(run.Utilisation(topology, PortOf(topology, "node0/nic0")), 0);
}

TEST(SimulatorTest, PeakStageIsTheSlotsInUse) {
  const Topology topology = FakeCluster(4, 2);
  SimulationInput input = RunOf(topology, Collective::kAllGather, "column_ring", 1000);
  EXPECT_EQ(Ran(topology, input).peak_stage_bytes, 4U * 1000);  // Own and three arrivals, one slot.
  input.chunk_bytes = 256;
  EXPECT_EQ(Ran(topology, input).peak_stage_bytes, 2U * 4 * 256);
  EXPECT_EQ(Ran(topology, input).chunks, 4);
}

TEST(SimulatorTest, ChunksAreThoseOfTheExecutor) {
  const Topology topology = FakeCluster(4, 2);
  SimulationInput input = RunOf(topology, Collective::kAllGather, "column_ring", 100000);
  input.chunk_bytes = 0;
  input.slot_bytes = 5000;  // 4 sub-slots of 1250, rounded down.
  EXPECT_EQ(Ran(topology, input).chunk_bytes, 1216U);
  input.slot_bytes = 4 * 64 - 1;
  EXPECT_THAT(Simulate(topology, input).status().message(), HasSubstr("they need 256"));
}

TEST(SimulatorTest, NothingToDoTakesNoTime) {
  const Topology topology = FakeCluster(2, 2);
  const Simulation run = Ran(topology, RunOf(topology, Collective::kAllGather, "ring", 0));
  EXPECT_EQ(run.seconds, 0);
  EXPECT_EQ(run.events, 4);  // Each rank starts, and is done.
}

TEST(SimulatorTest, BlocksMayDifferInSize) {
  const Topology topology = FakeCluster(3, 1);
  SimulationInput input = RunOf(topology, Collective::kAllGather, "direct", 1 << 20);
  input.blocks = {{1 << 20, 0, 1 << 10}};
  EXPECT_EQ(Ran(topology, input).tier_bytes[static_cast<std::size_t>(Tier::kLeaf)],
            2.0 * ((1 << 20) + (1 << 10)));
  input.blocks = {{1, 2}};
  EXPECT_THAT(Simulate(topology, input).status().message(), HasSubstr("2 block sizes"));
}

TEST(SimulatorTest, WhatIsForBlocksOfOneSizeIsRefusedOthers) {
  const Topology topology = FakeCluster(2, 2);
  for (const Collective collective :
       {Collective::kGather, Collective::kScatter, Collective::kAllToAll}) {
    SimulationInput input = RunOf(topology, collective, "column", 1 << 20, 1 << 18, 1);
    input.blocks = {{1 << 20, 1 << 20, 1 << 20, 0}};
    EXPECT_THAT(Simulate(topology, input).status().message(),
                HasSubstr("column of " + std::string(NameOf(collective)) +
                          " is for blocks of one size alone"));
    // Said one by one, but equal.
    input.blocks = {{1 << 20, 1 << 20, 1 << 20, 1 << 20}};
    const double one_by_one = Ran(topology, input).seconds;
    input.blocks = {{1 << 20}};
    EXPECT_EQ(one_by_one, Ran(topology, input).seconds) << NameOf(collective);
  }
}

TEST(SimulatorTest, ADeadlockNamesWhoWaitsForWhom) {
  const Topology topology = FakeCluster(2, 1);
  const Status status = Simulate(topology, OnePut([](int rank, ScheduleBuilder& builder) {
                                   builder.Wait(1 - rank, 3, kLongestBlock);
                                   builder.Signal(3, kLongestBlock);
                                 }))
                            .status();
  EXPECT_THAT(status.message(), HasSubstr("rank 0 waits for rank 1 to reach chunk 0 at mark 3"));
}

TEST(SimulatorTest, SchedulesThatReachBeyondAreRefused) {
  const Topology topology = FakeCluster(2, 1);
  const auto message = [&](auto more) {
    return Simulate(topology, OnePut(more)).status().message();
  };
  EXPECT_THAT(message([](int, ScheduleBuilder& builder) { builder.Wait(7, 0, kLongestBlock); }),
              HasSubstr("no rank 7"));
  EXPECT_THAT(message([](int, ScheduleBuilder& builder) { builder.Copy(Output(9), Input(0)); }),
              HasSubstr("blocks 9 to 9 of 2"));
  SimulationInput other = OnePut([](int, ScheduleBuilder&) {});
  other.schedule = [](int) { return Written(1, [](ScheduleBuilder&) {}); };
  EXPECT_THAT(Simulate(topology, other).status().message(), HasSubstr("rank 0"));
}

TEST(SimulatorTest, RatesThatAreNotPositiveAreRefused) {
  SimulatorOptions options;
  options.rates.memory_Bps = 0;
  EXPECT_EQ(Simulator::Make(FakeCluster(2, 1), options).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(SimulatorTest, SixteenThousandRanksAreSimulatedByOneNode) {
  if (testing::kIsSlowBuild && !testing::TestsAll())
    GTEST_SKIP() << "ten times slower in this build: with TIDEGATE_TEST_ALL=1";
  const int nodes = 2048;
  const Topology topology = FakeCluster(nodes, 8, {.intra_bandwidth_Bps = 450e9, .rails = 8});
  SimulatorOptions options;
  options.orbit = 8;
  Simulator simulator = std::move(Simulator::Make(topology, options)).value();
  const std::uint64_t block = 4096;  // 64 MB in all.
  const auto run = [&](Collective collective, const char* name) {
    const Result<Simulation> simulation = simulator.Run(RunOf(topology, collective, name, block));
    EXPECT_TRUE(simulation.ok()) << simulation.status().message();
    const double wire = simulation.value().tier_bytes[static_cast<std::size_t>(Tier::kLeaf)];
    if (std::string(name) != "ring") {
      EXPECT_EQ(wire, static_cast<double>(nodes - 1) * nodes * 8 * block) << name;
    }
    return simulation.value().seconds;
  };
  for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter}) {
    const double ring = run(collective, "ring");
    EXPECT_GT(ring / run(collective, "column_bruck"), 10);
    EXPECT_GT(ring / run(collective, "column_far_first"), 10);
    EXPECT_GT(ring / run(collective, "column_ring"), 1);
  }
}

}  // namespace
}  // namespace tidegate
