#include "offload/step_runner.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidegate::offload {
namespace {

/// An AdamW step over float32 tensors of `counts` elements, and the memory for it.
struct Tensors {
  explicit Tensors(const std::vector<std::size_t>& counts, unsigned seed = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto update = FindUpdate(hyperparameters, {});
    for (const std::size_t count : counts) {
      auto& own = memory.emplace_back();
      for (auto& values : own) {
        values.resize(count);
        for (float& value : values) value = std::abs(normal(random));
      }
      StepTensor tensor;
      tensor.update = update.value();
      tensor.sums = FindSums(ElementType::kFloat32);
      tensor.operands = {.count = count,
                         .gradient = own[0].data(),
                         .parameter = own[1].data(),
                         .states = {own[2].data(), own[3].data()}};
      tensor.coefficients = CoefficientsOf(hyperparameters, 3, 0.5, 0);
      tensors.push_back(tensor);
    }
  }

  Hyperparameters hyperparameters;
  std::vector<std::array<std::vector<float>, 4>> memory;
  std::vector<StepTensor> tensors;
};

std::vector<ThreadPlace> Places(int threads) {
  return std::vector<ThreadPlace>(static_cast<std::size_t>(threads));
}

/// Sizes below, at and above those of blocks and tiles, so that pieces are cut and bundled.
const std::vector<std::size_t> kCounts = {0,     1,      4095,  4096,   4097, 65535, 65536,
                                          65537, 200001, 16384, 100000, 0,    3};

class StepRunnerTest : public testing::TestWithParam<int> {};

TEST_P(StepRunnerTest, UpdatesEveryElementAsOneCallOnEachTensorDoes) {
  Tensors run(kCounts), expected(kCounts);
  for (const StepTensor& tensor : expected.tensors)
    tensor.update(tensor.operands, 0, tensor.operands.count, tensor.coefficients, nullptr);
  ThreadPool pool(Places(GetParam()));
  StepRunner runner(pool);
  ASSERT_TRUE(runner.Update(run.tensors).ok());
  EXPECT_EQ(run.memory, expected.memory);
}

TEST_P(StepRunnerTest, SumsAreThoseOfTheGradientsWithOrWithoutTheStep) {
  Tensors run(kCounts);
  std::vector<double> expected;
  for (const auto& [gradient, parameter, first, second] : run.memory)
    expected.push_back(std::accumulate(
        gradient.begin(), gradient.end(), 0.0,
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
    for (const StepTensor& tensor : expected.tensors)
      tensor.update(tensor.operands, 0, tensor.operands.count, tensor.coefficients, nullptr);
    std::vector<double> sums(counts.size());
    ASSERT_TRUE(runner.Update(run.tensors, sums).ok());
    EXPECT_EQ(run.memory, expected.memory);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, StepRunnerTest, testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace tidegate::offload
