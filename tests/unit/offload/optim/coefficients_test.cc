#include "offload/optim/coefficients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tidegate::offload::testing {
namespace {

using ::testing::HasSubstr;

TEST(CoefficientsTest, AdamCorrectsBiasInDouble) {
  const Coefficients c = CoefficientsOf({.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999}, 3, 1, 0);
  EXPECT_EQ(c.step_size, static_cast<float>(1e-3 / (1 - std::pow(0.9, 3))));
  EXPECT_EQ(c.inverse_root, static_cast<float>(1 / std::sqrt(1 - std::pow(0.999, 3))));
}

TEST(CoefficientsTest, DecayIsDecoupledInAdamWAndLion) {
  for (Rule rule : {Rule::kAdamW, Rule::kLion}) {
    const Coefficients c = CoefficientsOf({.rule = rule, .lr = 0.1, .weight_decay = 0.01}, 1, 1, 0);
    EXPECT_EQ(c.keep, static_cast<float>(1 - 0.1 * 0.01));
    EXPECT_EQ(c.l2, 0);
  }
  for (Rule rule : {Rule::kAdam, Rule::kSgd, Rule::kAdagrad}) {
    const Coefficients c = CoefficientsOf({.rule = rule, .lr = 0.1, .weight_decay = 0.01}, 1, 1, 0);
    EXPECT_EQ(c.keep, 1);
    EXPECT_EQ(c.l2, 0.01f);
  }
}

TEST(CoefficientsTest, TheAverageStartsFromTheNearerEnd) {
  const Coefficients near = CoefficientsOf({.beta1 = 0.9}, 1, 1, 0);
  EXPECT_FALSE(near.lerp_from_gradient);
  EXPECT_EQ(near.lerp, 0.1f);
  const Coefficients far = CoefficientsOf({.beta1 = 0}, 1, 1, 0);
  EXPECT_TRUE(far.lerp_from_gradient);
  EXPECT_EQ(far.lerp, 0);
}

TEST(CoefficientsTest, MaximizeTurnsTheGradientRound) {
  EXPECT_EQ(CoefficientsOf({}, 1, 1, 0).gradient_factor, 1);
  EXPECT_EQ(CoefficientsOf({.maximize = true}, 1, 0.25, 0).gradient_factor, -0.25f);
}

TEST(CoefficientsTest, AdagradDecaysTheLearningRate) {
  const Hyperparameters h{.rule = Rule::kAdagrad, .lr = 0.1, .lr_decay = 0.5};
  EXPECT_EQ(CoefficientsOf(h, 1, 1, 0).step_size, 0.1f);
  EXPECT_EQ(CoefficientsOf(h, 3, 1, 0).step_size, 0.05f);
}

TEST(CoefficientsTest, EachStepAndSeedDrawsItsOwnRandomBits) {
  EXPECT_NE(CoefficientsOf({}, 1, 1, 7).seed, CoefficientsOf({}, 2, 1, 7).seed);
  EXPECT_NE(CoefficientsOf({}, 1, 1, 7).seed, CoefficientsOf({}, 1, 1, 8).seed);
  EXPECT_EQ(CoefficientsOf({}, 1, 1, 7).seed, CoefficientsOf({}, 1, 1, 7).seed);
}

TEST(CoefficientsTest, RefusesValuesOutOfRange) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(CheckHyperparameters({}).ok());
  EXPECT_THAT(CheckHyperparameters({.lr = -1}).message(), HasSubstr("invalid lr: -1"));
  EXPECT_EQ(CheckHyperparameters({.lr = kNan}).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(CheckHyperparameters({.beta1 = 1}).ok());
  EXPECT_FALSE(CheckHyperparameters({.beta2 = -0.1}).ok());
  EXPECT_FALSE(CheckHyperparameters({.eps = kNan}).ok());
  EXPECT_FALSE(CheckHyperparameters({.weight_decay = -1}).ok());
}

}  // namespace
}  // namespace tidegate::offload::testing
