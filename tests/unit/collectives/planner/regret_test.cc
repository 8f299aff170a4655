// The planner against an exhaustive search in the simulator, at exactly the size asked for.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "collectives/planner/planner.h"
#include "collectives/topology/fake_cluster.h"

namespace tidegate {
namespace {

struct Point {
  std::vector<int> ranks_of_node;
  FakeClusterOptions options;
  bool round_robin = false;
  Collective collective = Collective::kAllGather;
  std::uint64_t bytes = 0;
};

Point RandomPoint(std::mt19937& random) {
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  const auto logarithmic = [&](double least, double most) {
    return std::exp(
        std::uniform_real_distribution<double>(std::log(least), std::log(most))(random));
  };
  Point point;
  const int nodes = pick(1, 6);
  const int per_node = pick(1, 6);
  const bool skewed = pick(0, 3) == 0;
  for (int node = 0; node < nodes; ++node)
    point.ranks_of_node.push_back(skewed ? pick(1, 6) : per_node);
  point.options.intra_latency_s = logarithmic(2e-7, 5e-6);
  point.options.intra_bandwidth_Bps = logarithmic(5e9, 400e9);
  point.options.inter_latency_s = point.options.intra_latency_s * logarithmic(1, 30);
  point.options.nic_bandwidth_Bps = logarithmic(1e8, 50e9);
  point.options.rails = pick(0, 1) == 0 ? 1 : per_node;
  point.round_robin = pick(0, 3) == 0;
  const Collective collectives[] = {Collective::kAllGather, Collective::kReduceScatter,
                                    Collective::kAllReduce};
  point.collective = collectives[pick(0, 2)];
  point.bytes = static_cast<std::uint64_t>(logarithmic(64, 256 << 20));
  return point;
}

TEST(RegretTest, ChoicesAreNearTheBestOfAllByExhaustiveSimulation) {
  const char* all = std::getenv("TIDEGATE_TEST_ALL");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  // Ten times slower, and no more of it is seen with more points.
  const int points = all != nullptr && *all != '0' ? 15 : 5;
#else
  const int points = all != nullptr && *all != '0' ? 500 : 15;
#endif
  std::mt19937 random(2026);
  std::vector<double> regrets;
  while (static_cast<int>(regrets.size()) < points) {
    const Point point = RandomPoint(random);
    Result<Topology> made = MakeFakeCluster(point.ranks_of_node, point.options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    if (made.value().ranks() == 1) continue;
    if (point.round_robin) made = Renumber(made.value(), RoundRobinNumbers(made.value()));
    const Topology topology = std::move(made).value();
    PlannerOptions options;
    options.rates = {.core_Bps = 20e9, .memory_Bps = 80e9};
    Planner planner = Planner::Make(topology, options).value();
    const Decision& decision = *planner.Decide({point.collective, point.bytes}).value();

    // Every chunk of every candidate, simulated for every rank.
    Simulator simulator = Simulator::Make(topology, {.rates = options.rates}).value();
    const Placement& placement = topology.placement();
    double best = std::numeric_limits<double>::infinity();
    double chosen = 0;
    for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
      if (algorithm.collective != point.collective || !algorithm.serves(placement)) continue;
      SimulationInput input;
      input.schedule = [&](int rank) {
        return algorithm.build(
            {.rank = rank, .ranks = placement.ranks(), .root = 0, .placement = &placement});
      };
      const auto ranks = static_cast<std::uint64_t>(placement.ranks());
      input.blocks.bytes = {point.collective == Collective::kAllReduce
                                ? point.bytes
                                : (point.bytes + ranks - 1) / ranks};
      input.slot_bytes = options.slot_bytes;
      const Result<Simulation> run = simulator.Run(input);
      ASSERT_TRUE(run.ok()) << algorithm.name << ": " << run.status().message();
      best = std::min(best, run.value().seconds);
      if (&algorithm == decision.algorithm) chosen = run.value().seconds;
    }
    regrets.push_back(chosen / best - 1);
  }
  std::sort(regrets.begin(), regrets.end());
  const double median = regrets[regrets.size() / 2];
  const double p95 = regrets[regrets.size() * 95 / 100];
  std::printf("%d points: regret median %.2f%%, p95 %.2f%%, worst %.2f%%\n", points, 100 * median,
              100 * p95, 100 * regrets.back());
  EXPECT_LE(median, 0.03);
  EXPECT_LE(p95, 0.10);
}

}  // namespace
}  // namespace tidegate
