#include "offload/optim/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "offload/optim/coefficients.h"
#include "offload/optim/update.h"

namespace tidegate::offload::testing {
namespace {

using ::testing::HasSubstr;

constexpr ElementType kFloat32 = ElementType::kFloat32;
constexpr ElementType kBFloat16 = ElementType::kBFloat16;
constexpr ElementType kFloat16 = ElementType::kFloat16;

TEST(LayoutTest, CountsStates) {
  EXPECT_EQ(StateCount({.rule = Rule::kAdamW}), 2);
  EXPECT_EQ(StateCount({.rule = Rule::kAdam, .amsgrad = true}), 3);
  EXPECT_EQ(StateCount({.rule = Rule::kSgd}), 0);
  EXPECT_EQ(StateCount({.rule = Rule::kSgd, .momentum = 0.9}), 1);
  EXPECT_EQ(StateCount({.rule = Rule::kAdagrad}), 1);
  EXPECT_EQ(StateCount({.rule = Rule::kLion}), 1);
}

TEST(LayoutTest, RefusesAMasterBesideAFloat32Parameter) {
  const Status status = CheckSupported({}, {kFloat32, kFloat32, Master::kFloat32});
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "no step of AdamW for gradient float32, parameter float32, master float32, states "
            "float32: a float32 parameter is its own master");
}

TEST(LayoutTest, RefusesASplitMasterOfFloat16) {
  EXPECT_THAT(CheckSupported({}, {kFloat16, kFloat16, Master::kSplit}).message(),
              HasSubstr("a split master takes a bfloat16 parameter"));
}

TEST(LayoutTest, RefusesAGradientOfTheOther16Bits) {
  EXPECT_EQ(CheckSupported({}, {kFloat16, kBFloat16, Master::kFloat32}).code(),
            StatusCode::kUnsupported);
  EXPECT_TRUE(CheckSupported({}, {kFloat32, kBFloat16, Master::kFloat32}).ok());
  EXPECT_TRUE(CheckSupported({}, {kFloat16, kFloat32}).ok());
}

TEST(LayoutTest, FindUpdateRefusesWhatCheckSupportedRefuses) {
  const auto update = FindUpdate({}, {kFloat32, kFloat32, Master::kFloat32});
  EXPECT_EQ(update.status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace tidegate::offload::testing
