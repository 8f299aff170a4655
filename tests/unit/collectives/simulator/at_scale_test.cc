// What docs/scale.md says of 16,384 ranks: what it costs to know it, and how near the cut bound the
// plans come.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/topology/fake_cluster.h"
#include "collectives/verifier/verifier.h"
#include "tests/unit/collectives/simulator/algorithm_runs.h"
#include "tests/unit/common/test_extent.h"

namespace tidegate {
namespace {

using testing::kIsSlowBuild;
using testing::RunOf;
using testing::TestsAll;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr int kRanksPerNode = 8;
constexpr int kNodesPerLeaf = 32;

constexpr const char* kWhySkipped =
    "ten times slower in this build, whose figures are of no interest: see the release build";

/// The machine of docs/scale.md, with the rate of its ranks' copies and reductions.
Topology Cluster(int nodes, FabricKind fabric = FabricKind::kSingleSwitch,
                 double oversubscription = 1) {
  FakeClusterOptions options;
  options.intra_bandwidth_Bps = 450e9;
  options.rails = kRanksPerNode;
  options.nodes_per_leaf = kNodesPerLeaf;
  options.fabric = fabric;
  options.oversubscription = oversubscription;
  return FakeCluster(nodes, kRanksPerNode, options);
}
Topology FatTree(int nodes) { return Cluster(nodes, FabricKind::kFatTree, 4); }

Simulator SimulatorOf(const Topology& topology, int orbit) {
  SimulatorOptions options;
  options.rates.core_Bps = 2.4e12;
  options.orbit = orbit;
  return std::move(Simulator::Make(topology, options)).value();
}

/// An algorithm, and in how many chunks it is the fastest there.
struct Plan {
  Collective collective;
  const char* name;
  std::uint64_t bytes;
  std::uint64_t chunks = 1;
};

std::string Described(const Plan& plan) {
  return std::string(NameOf(plan.collective)) + " of " + std::to_string(plan.bytes / kMiB) +
         " MB by " + plan.name + " in " + std::to_string(plan.chunks);
}

Result<Simulation> Run(const Topology& topology, Simulator& simulator, const Plan& plan) {
  const std::uint64_t block = plan.bytes / static_cast<std::uint64_t>(topology.ranks());
  const std::uint64_t chunk = (block / plan.chunks + 63) / 64 * 64;
  return simulator.Run(RunOf(topology, plan.collective, plan.name, block, chunk));
}

/// That a simulated `run` of `plan` takes at most 1/0.95 of the time that nothing beats.
void ExpectNearTheBound(const Topology& topology, const Plan& plan, const Simulation& run) {
  const std::uint64_t block = plan.bytes / static_cast<std::uint64_t>(topology.ranks());
  const double bound = BoundFor(topology, plan.collective, {{block}}).seconds;
  EXPECT_EQ(run.chunks, static_cast<std::int64_t>(plan.chunks)) << Described(plan);
  EXPECT_GE(bound / run.seconds, 0.95) << Described(plan);
  EXPECT_LE(bound, run.seconds) << Described(plan);
}

void ExpectNearTheBound(const Topology& topology, int orbit, const std::vector<Plan>& plans) {
  Simulator simulator = SimulatorOf(topology, orbit);
  for (const Plan& plan : plans) {
    const Result<Simulation> run = Run(topology, simulator, plan);
    ASSERT_TRUE(run.ok()) << Described(plan) << ": " << run.status().message();
    ExpectNearTheBound(topology, plan, run.value());
  }
}

TEST(AtScaleTest, FourGigabytesOf16384RanksBelowOneSwitchReach95PercentOfTheCutBound) {
  if (kIsSlowBuild) GTEST_SKIP() << kWhySkipped;
  ExpectNearTheBound(Cluster(2048), kRanksPerNode,
                     {{Collective::kAllGather, "column_circle", 4096 * kMiB, 2},
                      {Collective::kAllGather, "column_segmented_far_first", 4096 * kMiB, 32},
                      {Collective::kReduceScatter, "column_circle", 4096 * kMiB, 4},
                      {Collective::kReduceScatter, "column_segmented_bruck", 4096 * kMiB, 8}});
}

// Of 16,384 ranks: ACircleBelowLeavesMayTakeLonger.
TEST(AtScaleTest, FourGigabytesOf1024RanksOfAFatTreeReach95PercentOfTheCutBound) {
  if (kIsSlowBuild) GTEST_SKIP() << kWhySkipped;
  ExpectNearTheBound(FatTree(128), kNodesPerLeaf * kRanksPerNode,
                     {{Collective::kAllGather, "column_circle", 4096 * kMiB},
                      {Collective::kReduceScatter, "column_circle", 4096 * kMiB}});
}

/// What a part of this process took.
class Cost {
 public:
  Cost() : before_(SecondsOf(Usage())) {}

  /// Of processors, by all threads, since this was made.
  double Seconds() const { return SecondsOf(Usage()) - before_; }
  /// The most memory that the process had at once, whatever else it did before.
  static double Gibibytes() { return static_cast<double>(Usage().ru_maxrss) / (1 << 20); }

 private:
  static rusage Usage() {
    rusage usage{};
    EXPECT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    return usage;
  }
  static double SecondsOf(const rusage& usage) {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }

  double before_;
};

/// Proves `plan` right, simulates it, and says what that took.
Simulation VerifyAndSimulate(const Topology& topology, Simulator& simulator, const Plan& plan) {
  const Placement& placement = topology.placement();
  const Algorithm& build = FindAlgorithm(plan.collective, plan.name)->build;
  const AlgorithmInput input{.ranks = placement.ranks(), .placement = &placement};
  const Cost of_proof;
  // Of so many ranks by symmetry, or not at all: executing all takes too many steps.
  const Status verified = VerifyPlan(plan.collective, placement, 0, build.Programs(input),
                                     build.ClaimsFor(input), &topology);
  EXPECT_TRUE(verified.ok()) << Described(plan) << ": " << verified.message();
  const double proof_s = of_proof.Seconds();
  const Cost of_run;
  Result<Simulation> run = Run(topology, simulator, plan);
  TIDEGATE_CHECK(run.ok());
  std::printf("%s: verified in %.1f s, simulated in %.1f s, %.2f GiB\n", Described(plan).c_str(),
              proof_s, of_run.Seconds(), Cost::Gibibytes());
  return std::move(run).value();
}

// Not a benchmark: a limit on the work, far above what there is, in seconds of processor time,
// which other jobs on the machine hardly lengthen. The plans are those that the planner takes of
// short and of long messages.
TEST(AtScaleTest, VerifyingAndSimulating16384RanksTakesLessThan60SecondsOfOneCoreAnd4GiB) {
  if (kIsSlowBuild) GTEST_SKIP() << kWhySkipped;
  const Cost cost;
  const Topology topology = Cluster(2048);
  Simulator simulator = SimulatorOf(topology, kRanksPerNode);
  for (const Plan& plan : {Plan{Collective::kAllGather, "column_bruck", kMiB},
                           Plan{Collective::kReduceScatter, "column_bruck", kMiB},
                           Plan{Collective::kAllGather, "column_circle", 4096 * kMiB, 2},
                           Plan{Collective::kReduceScatter, "column_circle", 4096 * kMiB, 4}})
    VerifyAndSimulate(topology, simulator, plan);
  EXPECT_LT(cost.Seconds(), 60);
  EXPECT_LT(Cost::Gibibytes(), 4);
}

// The exception: not a node but a leaf of 256 ranks stands for all, and each of its nodes has to do
// with every other one.
TEST(AtScaleTest, ACircleBelowLeavesMayTakeLonger) {
  if (kIsSlowBuild) GTEST_SKIP() << kWhySkipped;
  if (!TestsAll()) GTEST_SKIP() << "two minutes, 5 GiB: with TIDEGATE_TEST_ALL=1";
  const Topology topology = FatTree(2048);
  Simulator simulator = SimulatorOf(topology, kNodesPerLeaf * kRanksPerNode);
  for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter}) {
    const Plan plan{collective, "column_circle", 4096 * kMiB};
    const Cost cost;
    ExpectNearTheBound(topology, plan, VerifyAndSimulate(topology, simulator, plan));
    EXPECT_LT(cost.Seconds(), 180) << Described(plan);
  }
  EXPECT_LT(Cost::Gibibytes(), 8);
}

}  // namespace
}  // namespace tidegate
