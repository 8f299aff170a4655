// The planner against an exhaustive search in the simulator, at exactly the size asked for.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/planner/planner.h"
#include "collectives/topology/fake_cluster.h"
#include "common/units.h"
#include "tests/unit/common/test_extent.h"

namespace tidegate {
namespace {

constexpr Collective kCollectives[] = {Collective::kAllGather, Collective::kReduceScatter,
                                       Collective::kAllReduce, Collective::kBroadcast,
                                       Collective::kReduce,    Collective::kGather,
                                       Collective::kScatter,   Collective::kAllToAll};
/// Points by which each of them comes once.
constexpr int kAPointEach = static_cast<int>(std::size(kCollectives));

struct Point {
  std::vector<int> ranks_of_node;
  FakeClusterOptions options;
  bool round_robin = false;
  PlanRequest request;
};

Point RandomPoint(std::mt19937& random, Collective collective, int most_nodes = 6) {
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  const auto logarithmic = [&](double least, double most) {
    return std::exp(
        std::uniform_real_distribution<double>(std::log(least), std::log(most))(random));
  };
  Point point;
  const int nodes = pick(1, most_nodes);
  const int per_node = pick(1, 6);
  const bool skewed = pick(0, 3) == 0;
  for (int node = 0; node < nodes; ++node)
    point.ranks_of_node.push_back(skewed ? pick(1, 6) : per_node);
  point.options.intra_latency_s = logarithmic(2e-7, 5e-6);
  point.options.intra_bandwidth_Bps = logarithmic(5e9, 400e9);
  point.options.inter_latency_s = point.options.intra_latency_s * logarithmic(1, 30);
  point.options.nic_bandwidth_Bps = logarithmic(1e8, 50e9);
  point.options.rails = pick(0, 1) == 0 ? 1 : per_node;
  if (pick(0, 3) == 0) {
    point.options.fabric = FabricKind::kFatTree;
    point.options.nodes_per_leaf = pick(1, std::max(1, nodes - 1));
    point.options.oversubscription = logarithmic(1, 8);
    point.options.spine_latency_s = logarithmic(1e-7, 2e-5);
  }
  point.round_robin = pick(0, 3) == 0;
  int ranks = 0;
  for (const int count : point.ranks_of_node) ranks += count;
  point.request.collective = collective;
  point.request.bytes = static_cast<std::uint64_t>(logarithmic(64, 256 << 20));
  if (IsRooted(collective)) point.request.root = pick(0, ranks - 1);
  return point;
}

std::string Describe(const Point& point) {
  std::string text = std::string(NameOf(point.request.collective)) + " of " +
                     FormatBytes(point.request.bytes) + " on ";
  for (const int count : point.ranks_of_node) text += std::to_string(count) + "+";
  text.back() = ',';
  text += point.options.rails == 1 ? " a NIC a node" : " several NICs a node";
  if (point.options.fabric == FabricKind::kFatTree)
    text += ", fat tree, " + std::to_string(point.options.nodes_per_leaf) + " nodes a leaf";
  return text + (point.round_robin ? ", round robin" : "");
}

bool HasChoice(const Point& point, const Topology& topology) {
  return std::ranges::count_if(AllAlgorithms(), [&](const NamedAlgorithm& algorithm) {
           return algorithm.collective == point.request.collective &&
                  algorithm.serves(topology.placement());
         }) > 1;
}

/// How much longer the planner's choice takes than the best of all, with every chunk of every
/// candidate simulated for every rank at just the size asked for; and what both are.
void FindRegret(const Point& point, const Topology& topology, double& regret, std::string& what,
                bool one_pass_on_one_node = false) {
  PlannerOptions options;
  options.rates = {.core_Bps = 20e9, .memory_Bps = 80e9};
  options.one_pass_on_one_node = one_pass_on_one_node;
  Planner planner = Planner::Make(topology, options).value();
  const Result<const Decision*> decided = planner.Decide(point.request);
  ASSERT_TRUE(decided.ok()) << decided.status().message();
  const NamedAlgorithm* const decision = decided.value()->algorithm;
  Simulator simulator = Simulator::Make(topology, {.rates = options.rates}).value();
  const Placement& placement = topology.placement();
  double best = std::numeric_limits<double>::infinity();
  double chosen = 0;
  std::string fastest;
  for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
    if (algorithm.collective != point.request.collective || !algorithm.serves(placement)) continue;
    SimulationInput input;
    input.schedule = algorithm.build.Programs(
        {.ranks = placement.ranks(), .root = point.request.root, .placement = &placement});
    input.blocks = BlockSizesOf(algorithm.collective, point.request.bytes, placement.ranks());
    input.slot_bytes = options.slot_bytes;
    const Result<Simulation> run = simulator.Run(input);
    ASSERT_TRUE(run.ok()) << algorithm.name << ": " << run.status().message();
    if (run.value().seconds < best) fastest = algorithm.name;
    best = std::min(best, run.value().seconds);
    if (&algorithm == decision) chosen = run.value().seconds;
  }
  regret = chosen / best - 1;
  what = Describe(point) + ": " + decision->name + " for " + fastest;
}

struct Share {
  double median = 0;
  double p95 = 0;
  double worst = 0;
};
Share ShareOf(std::vector<double> regrets) {
  std::ranges::sort(regrets);
  return {regrets[regrets.size() / 2], regrets[regrets.size() * 95 / 100], regrets.back()};
}
void Print(std::string_view name, const std::vector<double>& regrets) {
  const Share share = ShareOf(regrets);
  std::printf("%-15.*s %4zu points: regret median %.2f%%, p95 %.2f%%, worst %.2f%%\n",
              static_cast<int>(name.size()), name.data(), regrets.size(), 100 * share.median,
              100 * share.p95, 100 * share.worst);
}

TEST(RegretTest, ChoicesAreNearTheBestOfAllByExhaustiveSimulation) {
  const bool in_full = testing::TestsAll();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  // Ten times slower, and no more of it is seen with more points.
  const int points = (in_full ? 2 : 1) * kAPointEach;
#else
  const int points = (in_full ? 125 : 3) * kAPointEach;
#endif
  std::mt19937 random(2026);
  std::map<Collective, std::vector<double>> regrets_of;
  std::vector<double> regrets;
  int fat_trees = 0;
  while (static_cast<int>(regrets.size()) < points) {
    const Point point = RandomPoint(random, kCollectives[regrets.size() % kAPointEach]);
    Result<Topology> made = MakeFakeCluster(point.ranks_of_node, point.options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    if (made.value().ranks() == 1 || !HasChoice(point, made.value())) continue;
    if (point.round_robin) made = Renumber(made.value(), RoundRobinNumbers(made.value()));
    double regret = 0;
    std::string what;
    ASSERT_NO_FATAL_FAILURE(FindRegret(point, made.value(), regret, what)) << Describe(point);
    regrets.push_back(regret);
    if (point.options.fabric == FabricKind::kFatTree && made.value().nodes() > 1) ++fat_trees;
    regrets_of[point.request.collective].push_back(regret);
    if (regret > 0.1) std::printf("%.2f%%: %s\n", 100 * regret, what.c_str());
  }
  for (const auto& [collective, of_one] : regrets_of) Print(NameOf(collective), of_one);
  Print("all", regrets);
  std::printf("%d of them on fat trees\n", fat_trees);
  const Share share = ShareOf(regrets);
  EXPECT_LE(share.median, 0.03);
  EXPECT_LE(share.p95, 0.10);
  // Where there are many of each collective, they hold for each of them.
  if (points < 50 * kAPointEach) return;
  EXPECT_GE(fat_trees, points / 5);
  for (const auto& [collective, of_one] : regrets_of) {
    EXPECT_LE(ShareOf(of_one).median, 0.03) << NameOf(collective);
    EXPECT_LE(ShareOf(of_one).p95, 0.10) << NameOf(collective);
  }
}

/// Groups on one node choose among algorithms of one pass alone, for equal bits whatever the size.
/// Of all that there are, the best may be another: this is what that costs, and no more.
TEST(RegretTest, OnePassOnOneNodeTakesAtMostTwiceAsLong) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const std::size_t points = 20;
#else
  const std::size_t points = 200;
#endif
  std::mt19937 random(2026);
  for (const Collective collective :
       {Collective::kReduceScatter, Collective::kAllReduce, Collective::kReduce}) {
    std::vector<double> regrets;
    while (regrets.size() < points) {
      const Point point = RandomPoint(random, collective, /*most_nodes=*/1);
      const Topology topology = MakeFakeCluster(point.ranks_of_node, point.options).value();
      if (topology.ranks() == 1) continue;
      double regret = 0;
      std::string what;
      ASSERT_NO_FATAL_FAILURE(
          FindRegret(point, topology, regret, what, /*one_pass_on_one_node=*/true))
          << Describe(point);
      regrets.push_back(regret);
    }
    Print(NameOf(collective), regrets);
    // A short reduce by two_shot takes two hand-overs where a tree takes one.
    EXPECT_LE(ShareOf(regrets).worst, 1.0) << NameOf(collective);
    if (collective == Collective::kReduce) continue;
    EXPECT_LE(ShareOf(regrets).median, 0.03) << NameOf(collective);
    EXPECT_LE(ShareOf(regrets).p95, 0.2) << NameOf(collective);
  }
}

}  // namespace
}  // namespace tidegate
