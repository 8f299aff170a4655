#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/simd/targets.h"
#include "offload/optim/block8.h"
#include "offload/optim/reference.h"
#include "offload/optim/update_targets.h"

// Thousands of steps with 8-bit states beside float32 ones: what rounds right once may still stand
// still.

namespace tidegate::offload::testing {
namespace {

constexpr Hyperparameters kAdamW{.lr = 1e-4};

/// A float32 parameter with its states in float32 or in 8 bits.
class Training {
 public:
  Training(UpdateFunction update, States states, std::size_t count)
      : update_(update),
        eight_bits_(states == States::kBlock8),
        parameter(count),
        wide_{std::vector<float>(count), std::vector<float>(count)},
        codes_{std::vector<std::uint8_t>(count), std::vector<std::uint8_t>(count)},
        scales_{std::vector<float>(count / kScaleBlock), std::vector<float>(count / kScaleBlock)} {}

  void Step(const std::vector<float>& gradient, std::uint64_t step) {
    TensorOperands operands{.count = gradient.size(), .gradient = gradient.data()};
    operands.parameter = parameter.data();
    for (int i = 0; i < 2; ++i) {
      operands.states[i] = eight_bits_ ? static_cast<void*>(codes_[i].data()) : wide_[i].data();
      if (eight_bits_) operands.scales[i] = scales_[i].data();
    }
    update_(operands, 0, gradient.size(), CoefficientsOf(kAdamW, step, 1, 7), nullptr);
  }
  float exp_avg_sq(std::size_t i) const {
    if (!eight_bits_) return wide_[1][i];
    return DecodeUnsigned8(codes_[1][i], scales_[1][i / kScaleBlock]);
  }

 private:
  UpdateFunction update_;
  bool eight_bits_;

 public:
  std::vector<float> parameter;

 private:
  std::vector<float> wide_[2];
  std::vector<std::uint8_t> codes_[2];
  std::vector<float> scales_[2];
};

class LongRunTest : public ::testing::TestWithParam<KernelTarget> {
 protected:
  void SetUp() override {
    if (!IsSupported(GetParam())) GTEST_SKIP() << "this CPU does not run it";
  }

  static Training Start(States states, std::size_t count) {
    const Layout layout{.states = states};
    UpdateFunction update = FindUpdateFor(GetParam(), kAdamW, layout);
    if (update == nullptr) update = FindReferenceUpdate(kAdamW, layout);
    return Training(update, states, count);
  }
};

/// All elements but the first of each block have gradients a factor smaller from step 1,000 on.
double FactorAt(std::size_t index, std::uint64_t step, double factor) {
  return index % kScaleBlock == 0 || step <= 1000 ? 1 : factor;
}

TEST_P(LongRunTest, ExpAvgSqFollowsGradientsThatBecomeSmaller) {
  for (const double factor : {0.3, 0.03, 1e-3}) {
    const std::size_t count = 4 * kScaleBlock;
    Training exact = Start(States::kFloat32, count);
    Training compressed = Start(States::kBlock8, count);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> gradient(count);
    for (std::uint64_t step = 1; step <= 6000; ++step) {
      for (std::size_t i = 0; i < count; ++i)
        gradient[i] = static_cast<float>(FactorAt(i, step, factor)) * normal(random);
      exact.Step(gradient, step);
      compressed.Step(gradient, step);
    }
    double expected = 0;
    double found = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (i % kScaleBlock == 0) continue;
      expected += exact.exp_avg_sq(i);
      found += compressed.exp_avg_sq(i);
    }
    // One element is off by up to its own size; these are a thousand. Rounded to nearest, they are
    // a hundred times too large.
    EXPECT_NEAR(found / expected, 1, 0.1) << factor;
  }
}

TEST_P(LongRunTest, WhatHasNoMoreGradientsComesToRest) {
  // Gradients that hardly differ from step to step, which leave the scales as they are.
  const std::size_t count = 4 * kScaleBlock;
  Training compressed = Start(States::kBlock8, count);
  std::mt19937 random(2);
  std::normal_distribution<float> normal(1, 0.05f);
  std::vector<float> gradient(count);
  std::vector<float> before;
  for (std::uint64_t step = 1; step <= 6000; ++step) {
    for (std::size_t i = 0; i < count; ++i)
      gradient[i] = static_cast<float>(FactorAt(i, step, 0)) * normal(random);
    compressed.Step(gradient, step);
    if (step == 1200) before = compressed.parameter;
  }
  // With an exp_avg that is rounded to nearest and stands still, the way is 200 times lr.
  for (std::size_t i = 0; i < count; ++i) {
    if (i % kScaleBlock == 0) continue;
    EXPECT_NEAR(compressed.parameter[i], before[i], kAdamW.lr) << i;
  }
}

/// Those with vectors, and the last one for the reference.
std::vector<KernelTarget> Targets() {
  std::vector<KernelTarget> targets;
  const std::vector<KernelTarget> all = KernelTargets();
  for (KernelTarget target : all)
    if (target == all.back() || FindSumsFor(target, ElementType::kFloat32) != nullptr)
      targets.push_back(target);
  return targets;
}

INSTANTIATE_TEST_SUITE_P(Targets, LongRunTest, ::testing::ValuesIn(Targets()),
                         [](const auto& info) { return std::string(NameOfTarget(info.param)); });

}  // namespace
}  // namespace tidegate::offload::testing
