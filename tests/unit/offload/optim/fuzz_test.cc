#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/simd/targets.h"
#include "offload/optim/reference.h"
#include "offload/optim/update_targets.h"
#include "tests/unit/common/test_extent.h"
#include "tests/unit/offload/optim/tensors.h"

// Random steps against the reference: rule, layout, hyperparameters, count, alignment, cut and
// values. 400 seeds by default, 20,000 with TIDEGATE_TEST_ALL; a failure names its seed.

namespace tidegate::offload::testing {
namespace {

/// One of `choices`.
template <typename T>
T OneOf(std::mt19937_64& random, std::initializer_list<T> choices) {
  return choices.begin()[random() % choices.size()];
}

struct Case {
  Hyperparameters h;
  Layout layout;
  std::size_t count;
  std::size_t offset;
  std::size_t cut;  ///< In blocks.
  Values values;
  std::uint64_t step;
  double factor;
};

Hyperparameters DrawHyperparameters(std::mt19937_64& random) {
  Hyperparameters h;
  h.rule = OneOf(
      random, {Rule::kAdamW, Rule::kAdamW, Rule::kAdam, Rule::kSgd, Rule::kAdagrad, Rule::kLion});
  h.lr = OneOf(random, {0.0, 1e-7, 1e-3, 0.1, 3.0});
  h.beta1 = OneOf(random, {0.0, 0.3, 0.5, 0.9, 0.999});
  h.beta2 = OneOf(random, {0.0, 0.9, 0.999, 0.99999});
  h.eps = OneOf(random, {0.0, 1e-15, 1e-8, 1.0});
  h.weight_decay = OneOf(random, {0.0, 0.0, 1e-2, 0.5});
  h.momentum = OneOf(random, {0.0, 0.5, 0.9});
  h.dampening = OneOf(random, {0.0, 0.3});
  h.lr_decay = OneOf(random, {0.0, 0.1});
  h.amsgrad = random() % 4 == 0;
  h.nesterov = random() % 2 == 0;
  h.maximize = random() % 4 == 0;
  return h;
}

Case DrawCase(std::mt19937_64& random) {
  Case drawn;
  static constexpr std::initializer_list<ElementType> kTypes = {
      ElementType::kFloat32, ElementType::kBFloat16, ElementType::kFloat16};
  do {
    drawn.h = DrawHyperparameters(random);
    drawn.layout.gradient = OneOf(random, kTypes);
    drawn.layout.parameter = OneOf(random, kTypes);
    drawn.layout.master = OneOf(random, {Master::kNone, Master::kFloat32, Master::kSplit});
    drawn.layout.states = OneOf(random, {States::kFloat32, States::kBFloat16, States::kBlock8});
  } while (!CheckSupported(drawn.h, drawn.layout).ok());
  const auto kind = random() % 4;
  drawn.count = kind == 0   ? random() % 40
                : kind == 1 ? 4090 + random() % 12
                : kind == 2 ? random() % 1000
                            : random() % (3 * kBlock);
  drawn.offset = random() % 3 == 0 ? random() % 33 : 0;
  drawn.cut = random() % (drawn.count / kBlock + 1);
  drawn.values = OneOf(random, {Values::kOrdinary, Values::kSpecial});
  drawn.step = OneOf<std::uint64_t>(random, {1, 2, 10, 1000, 1000000});
  drawn.factor = OneOf(random, {1.0, 1.0, 0.25, 1.0 / 65536, 0.0, 0x1p100, HUGE_VAL});
  return drawn;
}

std::string Describe(const Case& drawn) {
  return std::string(NameOf(drawn.h.rule)) + ", " + offload::Describe(drawn.layout) + ", " +
         std::to_string(drawn.count) + " elements, offset " + std::to_string(drawn.offset) +
         ", cut at block " + std::to_string(drawn.cut);
}

void RunCase(const Case& drawn, std::uint64_t seed) {
  const Coefficients c = CoefficientsOf(drawn.h, drawn.step, drawn.factor, seed);
  const Tensors before(drawn.h, drawn.layout, drawn.count, drawn.values, drawn.offset, seed);
  const std::size_t block_count = (drawn.count + kBlock - 1) / kBlock;
  Tensors expected = before;
  std::vector<BlockSums> expected_sums(block_count);
  FindReferenceUpdate(drawn.h, drawn.layout)(expected.operands(), 0, drawn.count, c,
                                             expected_sums.data());
  for (KernelTarget target : KernelTargets()) {
    if (!IsSupported(target)) continue;
    const UpdateFunction update = FindUpdateFor(target, drawn.h, drawn.layout);
    if (update == nullptr) continue;
    Tensors found = before;
    std::vector<BlockSums> sums(block_count);
    const std::size_t cut = drawn.cut * kBlock;
    TensorOperands operands = found.operands();
    operands.stream_parameter = seed % 2 == 0;
    update(operands, cut, drawn.count - cut, c, sums.data() + drawn.cut);
    update(operands, 0, cut, c, sums.data());
    ASSERT_EQ(found.Difference(expected), "") << NameOfTarget(target) << ", " << Describe(drawn);
    for (std::size_t i = 0; i < block_count; ++i)
      ASSERT_EQ(std::bit_cast<std::uint64_t>(sums[i].squares),
                std::bit_cast<std::uint64_t>(expected_sums[i].squares))
          << NameOfTarget(target) << ", " << Describe(drawn);
  }
}

TEST(UpdateFuzzTest, EveryTargetGivesTheBitsOfTheReference) {
  const std::uint64_t seeds = tidegate::testing::TestsAll() ? 20000 : 400;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RunCase(DrawCase(random), seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tidegate::offload::testing
