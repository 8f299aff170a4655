// All-reduces whose sums of nodes are combined in an order of their own: the bits of float sums are
// those of the tree that collectives/algorithms/all_reduce_column.cc describes at its head.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/executor/execution.h"
#include "collectives/prepared_call.h"
#include "collectives/transport/loopback/loopback.h"

namespace tidegate {
namespace {

using Floats = std::vector<float>;

constexpr std::size_t kStageBytes = 64 << 10;
/// Of a part: several chunks and a rest, in whole units of the 64 bytes that parts are cut by.
constexpr std::size_t kElementsOfPart = 16 * 407;

/// Of magnitudes so different that most sums of them round otherwise in another order.
std::vector<Floats> InputsOf(int ranks, std::size_t count) {
  std::mt19937 random(7);
  std::vector<Floats> inputs(static_cast<std::size_t>(ranks), Floats(count));
  for (Floats& input : inputs) {
    for (float& value : input) {
      const auto mantissa = static_cast<float>(static_cast<int>(random() % 200001) - 100000);
      value = std::ldexp(mantissa / 3.0F, static_cast<int>(random() % 24) - 12);
    }
  }
  return inputs;
}

/// What `name` gives each rank, run over loopback by one thread.
std::vector<Floats> AllReduce(const char* name, const Placement& placement,
                              std::vector<Floats> tensors) {
  const int ranks = placement.ranks();
  const Algorithm& algorithm = FindAlgorithm(Collective::kAllReduce, name)->build;
  LoopbackGroup group(ranks, kStageBytes);
  std::vector<Execution> executions;
  std::vector<Schedule> schedules;
  std::vector<PreparedCall> calls;
  for (int rank = 0; rank < ranks; ++rank) {
    executions.emplace_back(group.transport(rank), /*lane=*/0);
    schedules.push_back(algorithm({.rank = rank, .ranks = ranks, .placement = &placement}));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const auto row = static_cast<std::size_t>(rank);
    const Block tensor = {reinterpret_cast<std::byte*>(tensors[row].data()),
                          tensors[row].size() * sizeof(float)};
    calls.push_back(Prepare({.collective = Collective::kAllReduce,
                             .dtype = DataType::kFloat32,
                             .reduce_op = ReduceOp::kSum,
                             .inputs = {tensor},
                             .outputs = {tensor}},
                            schedules[row], 1, kStageBytes, DataPaths{kStageBytes, 1 << 30}));
  }
  for (std::size_t row = 0; row < calls.size(); ++row)
    EXPECT_TRUE(executions[row].Start(Bind(calls[row])).ok());
  std::size_t unfinished = calls.size();
  std::vector<bool> done(calls.size(), false);
  for (int round = 0; unfinished > 0 && round < 1'000'000; ++round) {
    for (std::size_t row = 0; row < calls.size(); ++row) {
      if (done[row]) continue;
      const Result<Execution::Outcome> outcome = executions[row].Advance();
      if (!outcome.ok()) {
        ADD_FAILURE() << "rank " << row << ": " << outcome.status().message();
        return tensors;
      }
      if (outcome.value() == Execution::Outcome::kBlocked) continue;
      done[row] = true;
      --unfinished;
    }
  }
  EXPECT_EQ(unfinished, 0u);
  return tensors;
}

/// One pass: left to right, each addition of fp32 rounded.
float InOnePass(const Floats& terms) {
  float sum = terms.front();
  for (std::size_t i = 1; i < terms.size(); ++i) sum += terms[i];
  return sum;
}

/// A balanced tree, the lower half first, over a power of two of leaves; where there
/// are more terms than that, as many pairs of neighbours, from the first on, are one leaf each.
float InATree(const Floats& terms) {
  const std::size_t leaves = std::bit_floor(terms.size());
  const std::size_t pairs = terms.size() - leaves;
  Floats level;
  for (std::size_t i = 0; i < 2 * pairs; i += 2) level.push_back(terms[i] + terms[i + 1]);
  level.insert(level.end(), terms.begin() + static_cast<std::ptrdiff_t>(2 * pairs), terms.end());
  while (level.size() > 1) {
    Floats above;
    for (std::size_t i = 0; i < level.size(); i += 2) above.push_back(level[i] + level[i + 1]);
    level = std::move(above);
  }
  return level.front();
}

struct Case {
  std::string name;
  std::vector<int> node_of;
};

class ReductionOrderTest : public ::testing::TestWithParam<Case> {
 protected:
  ReductionOrderTest()
      : placement_(Placement::Make(GetParam().node_of).value()),
        parts_(static_cast<std::size_t>(placement_.ranks_on_largest_node())),
        inputs_(InputsOf(placement_.ranks(), parts_ * kElementsOfPart)) {}

  /// The sums of the nodes for element `i`, in the order of the ranks that carry its part.
  Floats NodeSums(std::size_t i) const {
    const auto part = static_cast<int>(i / kElementsOfPart);
    std::vector<std::pair<int, float>> by_carrier;
    for (int node = 0; node < placement_.nodes(); ++node) {
      const std::span<const int> ranks = placement_.ranks_on(node);
      Floats terms;
      for (const int rank : ranks) terms.push_back(inputs_[static_cast<std::size_t>(rank)][i]);
      by_carrier.emplace_back(ranks[static_cast<std::size_t>(part) % ranks.size()],
                              InOnePass(terms));
    }
    std::ranges::sort(by_carrier);
    Floats sums;
    for (const auto& [carrier, sum] : by_carrier) sums.push_back(sum);
    return sums;
  }

  void ExpectBits(const char* name, float (*combine)(const Floats& sums),
                  float (*otherwise)(const Floats& sums)) {
    const std::vector<Floats> results = AllReduce(name, placement_, inputs_);
    std::size_t differ = 0;
    for (std::size_t i = 0; i < inputs_.front().size(); ++i) {
      const Floats sums = NodeSums(i);
      const float expected = combine(sums);
      differ += expected != otherwise(sums) ? 1 : 0;
      for (std::size_t rank = 0; rank < results.size(); ++rank)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(results[rank][i]),
                  std::bit_cast<std::uint32_t>(expected))
            << name << ": element " << i << " of rank " << rank << " is " << results[rank][i]
            << ", and not " << expected;
    }
    // Of three nodes the tree is one pass.
    if (placement_.nodes() > 3) {
      EXPECT_GT(differ, inputs_.front().size() / 10) << "the order shows in too few elements";
    }
  }

  const Placement placement_;
  const std::size_t parts_;
  const std::vector<Floats> inputs_;
};

TEST_P(ReductionOrderTest, ColumnDoublingIsABalancedTreeOverTheCarriers) {
  ExpectBits("column_doubling", InATree, InOnePass);
}

TEST_P(ReductionOrderTest, ColumnOneShotIsOnePassOverTheCarriers) {
  ExpectBits("column_one_shot", InOnePass, InATree);
}

/// Where nodes are dealt, parts differ in the order of their carriers.
INSTANTIATE_TEST_SUITE_P(Placements, ReductionOrderTest,
                         ::testing::Values(Case{"FourNodesOfTwo", {0, 0, 1, 1, 2, 2, 3, 3}},
                                           Case{"FiveNodesOfTwo", {0, 0, 1, 1, 2, 2, 3, 3, 4, 4}},
                                           Case{"SevenNodesOfOneAndTwo", {0, 1, 2, 3, 3, 4, 5, 6}},
                                           Case{"ThreeNodesDealtUnevenly", {0, 1, 2, 1, 0}},
                                           Case{"FiveNodesDealtUnevenly",
                                                {0, 1, 2, 3, 4, 4, 2, 0, 2}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tidegate
