// Whatever the machine, the algorithm and the size: nothing is faster than the cut bound.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "collectives/topology/fake_cluster.h"
#include "tests/unit/collectives/simulator/algorithm_runs.h"
#include "tests/unit/collectives/topology/fixtures.h"

namespace tidegate {
namespace {

using testing::RunOf;

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : random_(seed) {}
  int Of(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  /// Equally distributed in its logarithm.
  double Scale(double least, double most) {
    return least * std::pow(most / least, std::uniform_real_distribution<double>()(random_));
  }
  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_;
};

Topology RandomCluster(Dice& dice) {
  std::vector<int> ranks_of_node(static_cast<std::size_t>(dice.Of(1, 9)));
  const int even = dice.Of(1, 5);
  const bool is_even = dice.Of(0, 1) == 0;
  for (int& ranks : ranks_of_node) ranks = is_even ? even : dice.Of(1, 5);
  FakeClusterOptions options;
  options.intra_latency_s = dice.Scale(1e-7, 2e-6);
  options.inter_latency_s = dice.Scale(2e-6, 2e-5);
  options.intra_bandwidth_Bps = dice.Scale(1e9, 500e9);
  for (int rails = dice.Of(1, 3); rails > 0; --rails)
    options.nic_bandwidths_Bps.push_back(dice.Scale(1e9, 100e9));
  constexpr FabricKind kFabrics[] = {FabricKind::kSingleSwitch, FabricKind::kFatTree,
                                     FabricKind::kRailOptimised, FabricKind::kRailOnly};
  options.fabric = kFabrics[dice.Of(0, 3)];
  options.nodes_per_leaf = dice.Of(1, 4);
  options.oversubscription = dice.Of(1, 4);
  const Topology block = MakeFakeCluster(ranks_of_node, options).value();
  std::vector<int> numbers(static_cast<std::size_t>(block.ranks()));
  std::iota(numbers.begin(), numbers.end(), 0);
  if (dice.Of(0, 1) == 0) std::ranges::shuffle(numbers, dice.random());
  return Renumber(block, numbers).value();
}

/// One size for all ranks; of gather and scatter, whose bounds are for any sizes, also one for
/// each, of which some are nothing.
BlockSizes RandomBlocks(const NamedAlgorithm& algorithm, std::uint64_t bytes, int ranks,
                        Dice& dice) {
  const bool is_of_root =
      algorithm.collective == Collective::kGather || algorithm.collective == Collective::kScatter;
  if (!is_of_root || algorithm.even || dice.Of(0, 1) == 0) return {{bytes}};
  BlockSizes blocks;
  for (int rank = 0; rank < ranks; ++rank)
    blocks.bytes.push_back(bytes * static_cast<std::uint64_t>(dice.Of(0, 4)) / 4);
  return blocks;
}

/// Every algorithm that serves, once each.
void ExpectNoneBeatsTheBound(const Topology& topology, Dice& dice, const std::string& what) {
  SimulatorOptions options;
  options.striped = dice.Of(0, 2) > 0;
  if (dice.Of(0, 1) == 0) options.rates = {.core_Bps = dice.Scale(1e9, 1e12)};
  Simulator simulator = std::move(Simulator::Make(topology, options)).value();
  for (const NamedAlgorithm& algorithm : AllAlgorithms()) {
    if (!algorithm.serves(topology.placement())) continue;
    const Collective collective = algorithm.collective;
    const auto bytes = static_cast<std::uint64_t>(dice.Scale(1, 1e7));
    const int root = dice.Of(0, topology.ranks() - 1);
    SimulationInput input = RunOf(topology, collective, algorithm.name, bytes, 0, root);
    input.blocks = RandomBlocks(algorithm, bytes, topology.ranks(), dice);
    if (dice.Of(0, 1) == 0) input.chunk_bytes = std::max<std::size_t>(64, bytes / 5);
    if (dice.Of(0, 3) == 0) input.jitter_s = 1e-6;
    const Result<Simulation> simulation = simulator.Run(input);
    const std::string name = what + " " + std::string(NameOf(collective)) + " " + algorithm.name +
                             " of " + std::to_string(bytes) + " bytes at root " +
                             std::to_string(root);
    ASSERT_TRUE(simulation.ok()) << name << ": " << simulation.status().message();
    const Bound bound = BoundFor(topology, collective, input.blocks, root);
    const bool is_bounded = collective != Collective::kBarrier && topology.ranks() > 1 &&
                            input.blocks.bytes.size() == 1;
    EXPECT_TRUE(bound.seconds > 0 || !is_bounded) << name;
    EXPECT_GE(simulation.value().seconds, bound.seconds * (1 - 1e-9)) << name << ", " << bound.cut;
    for (LinkId link = 0; link < topology.link_end(); ++link)
      EXPECT_LE(simulation.value().Utilisation(topology, link), 1 + 1e-9) << name;
  }
}

class BoundsPropertyTest : public ::testing::TestWithParam<int> {};

TEST_P(BoundsPropertyTest, NoAlgorithmBeatsTheCutBoundOfARandomCluster) {
  for (int i = 0; i < 12; ++i) {
    const auto seed = static_cast<std::uint32_t>(1000 * GetParam() + i);
    Dice dice(seed);
    const Topology topology = RandomCluster(dice);
    ExpectNoneBeatsTheBound(topology, dice, "seed " + std::to_string(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, BoundsPropertyTest, ::testing::Range(0, 8));

class MachinesTest : public ::testing::TestWithParam<const char*> {};

TEST_P(MachinesTest, NoAlgorithmBeatsTheCutBoundOfAMachine) {
  Dice dice(7);
  const Topology topology = Fixture(GetParam());
  for (int i = 0; i < 5; ++i) ExpectNoneBeatsTheBound(topology, dice, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Fixtures, MachinesTest,
                         ::testing::Values("laptop", "epyc_2s_nps4", "dgx_h100", "hgx_a100",
                                           "vm_hidden_switches", "cloud_8gpu_32nic"));

}  // namespace
}  // namespace tidegate
