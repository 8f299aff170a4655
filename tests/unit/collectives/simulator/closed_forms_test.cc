// Times that a formula gives, on clusters whose nodes cost nothing: every byte crosses wires alone.

#include <gtest/gtest.h>

#include <cmath>

#include "collectives/topology/fake_cluster.h"
#include "tests/unit/collectives/simulator/algorithm_runs.h"

namespace tidegate {
namespace {

using testing::RunOf;

constexpr double kAlpha = 5e-3;
constexpr double kRate = 1e7;  // So far below the nodes that these count for less than 1e-9.

/// Nodes without latency and faster than any message is long.
Topology Cluster(int nodes, int per_node) {
  return FakeCluster(nodes, per_node,
                     {.intra_latency_s = 0,
                      .intra_bandwidth_Bps = 1e18,
                      .inter_latency_s = kAlpha,
                      .nic_bandwidth_Bps = kRate});
}

double Seconds(const Topology& topology, const SimulationInput& input) {
  const Result<Simulation> simulation = Simulate(topology, input);
  EXPECT_TRUE(simulation.ok()) << simulation.status().message();
  return simulation.ok() ? simulation.value().seconds : -1;
}

int CeilLog2(int value) {
  int log = 0;
  while ((1 << log) < value) ++log;
  return log;
}

/// Latencies on the longest chain of messages of an exchange by doubling: one a round, but where
/// the last doubling adds half of itself or less. Then one message is free of the one before it: of
/// Bruck's the last, which carries but what came before the last but one; far first the second, for
/// which nothing has come that is to go on. Between the two it is sent at once.
int LatenciesOfDoubling(int members) {
  const int rounds = CeilLog2(members);
  return 4 * members <= 3 << rounds ? rounds - 1 : rounds;
}

// Named as the macros that it stands beside. NOLINTNEXTLINE(readability-identifier-naming)
#define EXPECT_SAME(actual, expected) EXPECT_NEAR((actual) / (expected), 1, 1e-9)

class ClosedFormsTest : public ::testing::TestWithParam<int> {};

TEST_P(ClosedFormsTest, RingTakesRanksLessOneMessages) {
  const int p = GetParam();
  const Topology topology = Cluster(p, 1);
  const double s = 3 << 20;
  const double expected = (p - 1) * (kAlpha + s / kRate);
  EXPECT_SAME(Seconds(topology, RunOf(topology, Collective::kAllGather, "ring", 3 << 20)),
              expected);
  EXPECT_SAME(Seconds(topology, RunOf(topology, Collective::kReduceScatter, "ring", 3 << 20)),
              expected);
}

TEST_P(ClosedFormsTest, PairwiseTakesOneLatency) {
  const int p = GetParam();
  const Topology topology = Cluster(p, 1);
  const double s = 3 << 20;
  EXPECT_SAME(Seconds(topology, RunOf(topology, Collective::kAllGather, "direct", 3 << 20)),
              kAlpha + (p - 1) * s / kRate);
}

TEST_P(ClosedFormsTest, LogarithmicExchangesTakeALatencyForEachDoublingThatWaits) {
  const int p = GetParam();
  const Topology topology = Cluster(p, 1);
  const double s = 3 << 20;
  const double expected = LatenciesOfDoubling(p) * kAlpha + (p - 1) * s / kRate;
  for (const std::string name : {"bruck", "far_first", "recursive_doubling"}) {
    if (name == "recursive_doubling" && (p & (p - 1)) != 0) continue;
    for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter}) {
      const double seconds = Seconds(topology, RunOf(topology, collective, name, 3 << 20));
      EXPECT_SAME(seconds, expected) << NameOf(collective) << " " << name;
    }
  }
}

TEST_P(ClosedFormsTest, WholeTensorsTakeALatencyARound) {
  const int p = GetParam();
  const Topology topology = Cluster(p, 1);
  const double whole = 3 << 20;
  EXPECT_SAME(Seconds(topology, RunOf(topology, Collective::kAllReduce, "one_shot", 3 << 20)),
              kAlpha + (p - 1) * whole / kRate);
  if (p == 2) return;
  const auto doubling = [&](std::uint64_t bytes) {
    return Seconds(topology, RunOf(topology, Collective::kAllReduce, "column_doubling", bytes));
  };
  if ((p & (p - 1)) == 0) {
    EXPECT_SAME(doubling(3 << 20), CeilLog2(p) * (kAlpha + whole / kRate));
  } else {
    // What exceeds a power of two gives its sums first and gets the result last. Others do not wait
    // for that, so that a latency may be hidden, and messages of two rounds may meet at a NIC: of
    // short ones that costs nothing.
    const double latencies = doubling(64) / kAlpha;
    EXPECT_GE(latencies, CeilLog2(p));
    EXPECT_LE(latencies, CeilLog2(p) + 1.01);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ClosedFormsTest,
                         ::testing::Values(2, 3, 4, 5, 6, 7, 8, 12, 13, 32));

TEST(ClosedFormsTest, ChunksOfARingHideTheLatenciesOfOthers) {
  // A rank sends its own next chunk while what came before it is on its way: a latency is waited
  // for only once all own chunks, each longer than a latency, are sent.
  const int p = 6;
  const Topology topology = Cluster(p, 1);
  for (const int chunks : {2, 3, 16}) {
    const double s = 65536.0 * chunks;
    EXPECT_SAME(Seconds(topology, RunOf(topology, Collective::kAllGather, "ring",
                                        static_cast<std::uint64_t>(s), 65536)),
                (p - 1) * (kAlpha + s / kRate))
        << chunks;
  }
}

TEST(ClosedFormsTest, ColumnFirstSharesTheWireOfANode) {
  const double s = 1 << 20;
  for (const int n : {2, 3, 5, 6, 7, 8, 12}) {
    for (const int g : {2, 3, 8}) {
      const Topology topology = Cluster(n, g);
      const double bytes = (n - 1) * g * s / kRate;
      for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter}) {
        EXPECT_SAME(Seconds(topology, RunOf(topology, collective, "column_ring", 1 << 20)),
                    (n - 1) * kAlpha + bytes)
            << n << "x" << g << " " << NameOf(collective);
        for (const char* name : {"column_bruck", "column_far_first"})
          EXPECT_SAME(Seconds(topology, RunOf(topology, collective, name, 1 << 20)),
                      LatenciesOfDoubling(n) * kAlpha + bytes)
              << n << "x" << g << " " << NameOf(collective) << " " << name;
      }
    }
  }
}

TEST(ClosedFormsTest, WholeSumsOfColumnsShareTheWireOfANode) {
  const double sum = 3 << 20;  // A node's columns together are one tensor.
  for (const int n : {2, 3, 4, 5, 8}) {
    for (const int g : {2, 3, 8}) {
      const Topology topology = Cluster(n, g);
      EXPECT_SAME(
          Seconds(topology, RunOf(topology, Collective::kAllReduce, "column_one_shot", 3 << 20)),
          kAlpha + (n - 1) * sum / kRate)
          << n << "x" << g;
      if (n == 2 || (n & (n - 1)) != 0) continue;
      EXPECT_SAME(
          Seconds(topology, RunOf(topology, Collective::kAllReduce, "column_doubling", 3 << 20)),
          CeilLog2(n) * (kAlpha + sum / kRate))
          << n << "x" << g;
    }
  }
}

TEST(ClosedFormsTest, ABinomialTreeSendsTheWholeMessageInEachRound) {
  for (const int n : {2, 4, 16, 64}) {
    const Topology topology = Cluster(n, 1);
    EXPECT_SAME(Seconds(topology, RunOf(topology, Collective::kBroadcast, "tree", 1 << 20)),
                CeilLog2(n) * (kAlpha + (1 << 20) / kRate));
  }
}

TEST(ClosedFormsTest, ReductionAndBroadcastTakeAsLong) {
  const Topology topology = Cluster(16, 1);
  EXPECT_SAME(Seconds(topology, RunOf(topology, Collective::kReduce, "tree", 1 << 20)),
              4 * (kAlpha + (1 << 20) / kRate));
}

TEST(ClosedFormsTest, StripesTakeTheSumOfTheRails) {
  const Topology topology = FakeCluster(4, 1,
                                        {.intra_latency_s = 0,
                                         .intra_bandwidth_Bps = 1e18,
                                         .inter_latency_s = kAlpha,
                                         .nic_bandwidths_Bps = {6e6, 2e6, 2e6},
                                         .fabric = FabricKind::kRailOptimised});
  EXPECT_SAME(Seconds(topology, RunOf(topology, Collective::kAllGather, "ring", 1 << 20)),
              3 * (kAlpha + (1 << 20) / kRate));
}

TEST(ClosedFormsTest, ALocalCopyReadsAndWrites) {
  const Topology topology = Cluster(1, 1);
  SimulatorOptions options;
  options.rates.core_Bps = 10e9;
  options.rates.memory_Bps = 8e9;
  const Result<Simulation> simulation =
      Simulate(topology, RunOf(topology, Collective::kAllGather, "direct", 1 << 20), options);
  ASSERT_TRUE(simulation.ok());
  EXPECT_SAME(simulation.value().seconds, 2.0 * (1 << 20) / 8e9);
}

TEST(ClosedFormsTest, RanksOfANodeShareItsMemory) {
  const Topology topology = Cluster(1, 4);
  SimulatorOptions options;
  options.rates.memory_Bps = 8e9;
  const Result<Simulation> simulation =
      Simulate(topology, RunOf(topology, Collective::kAllGather, "direct", 1 << 20), options);
  ASSERT_TRUE(simulation.ok());
  // Each rank stages its block, copies it to its output and three more there: 5 copies.
  EXPECT_SAME(simulation.value().seconds, 4 * 5 * 2.0 * (1 << 20) / 8e9);
}

}  // namespace
}  // namespace tidegate
