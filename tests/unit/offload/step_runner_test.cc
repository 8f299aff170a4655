#include "offload/step_runner.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/offload/tensors.h"

namespace tidegate::offload::testing {
namespace {

class StepRunnerTest : public ::testing::TestWithParam<int> {};

TEST_P(StepRunnerTest, UpdatesEveryElementAsOneCallOnEachTensorDoes) {
  Tensors run(kCounts), expected(kCounts);
  expected.StepEach();
  ThreadPool pool(Places(GetParam()));
  StepRunner runner(pool);
  ASSERT_TRUE(runner.Update(run.tensors).ok());
  EXPECT_EQ(run.memory, expected.memory);
}

TEST_P(StepRunnerTest, SumsAreThoseOfTheGradientsWithOrWithoutTheStep) {
  Tensors run(kCounts);
  std::vector<double> expected;
  for (const auto& own : run.memory)
    expected.push_back(std::accumulate(
        own[0].begin(), own[0].end(), 0.0,
        [](double sum, float value) { return sum + 0.25 * double{value} * double{value}; }));
  ThreadPool pool(Places(GetParam()));
  StepRunner runner(pool);
  std::vector<double> before(kCounts.size()), during(kCounts.size());
  ASSERT_TRUE(runner.Sums(run.tensors, 0.5f, before).ok());
  ASSERT_TRUE(runner.Update(run.tensors, during).ok());
  EXPECT_EQ(before, during);
  for (std::size_t t = 0; t < expected.size(); ++t)
    EXPECT_NEAR(before[t], expected[t], 1e-6 * expected[t]) << t;
}

TEST_P(StepRunnerTest, SumsHaveTheSameBitsForAnyNumberOfThreads) {
  Tensors run(kCounts);
  ThreadPool one(Places(1)), several(Places(GetParam()));
  StepRunner runner(one), other(several);
  std::vector<double> sums(kCounts.size()), others(kCounts.size());
  ASSERT_TRUE(runner.Sums(run.tensors, 1.0f, sums).ok());
  ASSERT_TRUE(other.Sums(run.tensors, 1.0f, others).ok());
  EXPECT_EQ(sums, others);
}

TEST_P(StepRunnerTest, AnInfiniteElementShowsInTheSumOfItsTensorAlone) {
  Tensors run({5000, 70000, 5000});
  run.memory[1][0][69999] = std::numeric_limits<float>::infinity();
  ThreadPool pool(Places(GetParam()));
  StepRunner runner(pool);
  std::vector<double> sums(3);
  ASSERT_TRUE(runner.Update(run.tensors, sums).ok());
  EXPECT_TRUE(std::isfinite(sums[0]));
  EXPECT_FALSE(std::isfinite(sums[1]));
  EXPECT_TRUE(std::isfinite(sums[2]));
}

TEST_P(StepRunnerTest, StepsOverOtherTensorsFollowEachOther) {
  ThreadPool pool(Places(GetParam()));
  StepRunner runner(pool);
  for (const auto& counts : {kCounts, std::vector<std::size_t>{7}, std::vector<std::size_t>{},
                             std::vector<std::size_t>{0}, kCounts}) {
    Tensors run(counts), expected(counts);
    expected.StepEach();
    std::vector<double> sums(counts.size());
    ASSERT_TRUE(runner.Update(run.tensors, sums).ok());
    EXPECT_EQ(run.memory, expected.memory);
  }
}

TEST_P(StepRunnerTest, PartsOfATensorComeToWhatTheWholeDoes) {
  Tensors run({200001}), expected({200001});
  ThreadPool pool(Places(GetParam()));
  StepRunner runner(pool);
  std::vector<double> whole(1);
  ASSERT_TRUE(runner.Update(expected.tensors, whole).ok());
  std::vector<BlockSums> blocks;
  std::vector<float> copied;
  const std::size_t cuts[] = {0, 4096, 4096, 163840, 200001};
  for (std::size_t part = 0; part + 1 < std::size(cuts); ++part) {
    StepTensor tensor = run.tensors[0];
    tensor.first = cuts[part];
    tensor.operands.count = cuts[part + 1] - cuts[part];
    std::vector<double> sums(1);
    std::vector<float> copy(tensor.operands.count);
    tensor.copy = reinterpret_cast<std::byte*>(copy.data());
    tensor.copy_element_bytes = sizeof(float);
    ASSERT_TRUE(runner.Update({&tensor, 1}, sums).ok());
    copied.insert(copied.end(), copy.begin(), copy.end());
    EXPECT_EQ(runner.blocks().size(), TileSpace::BlocksIn(tensor.operands.count));
    blocks.insert(blocks.end(), runner.blocks().begin(), runner.blocks().end());
  }
  EXPECT_EQ(run.memory, expected.memory);
  EXPECT_EQ(copied, run.memory[0][1]);
  EXPECT_EQ(TileSpace::SumOfBlocks(blocks), whole[0]);
}

INSTANTIATE_TEST_SUITE_P(Threads, StepRunnerTest, ::testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace tidegate::offload::testing
