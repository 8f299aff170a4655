#include "offload/optim/update.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "common/simd/targets.h"
#include "offload/optim/reference.h"
#include "offload/optim/split_master.h"
#include "offload/optim/update_targets.h"
#include "tests/unit/common/test_extent.h"
#include "tests/unit/offload/optim/tensors.h"

namespace tidegate::offload::testing {
namespace {

constexpr std::size_t kLanes = 16;  // The most that a target has.
constexpr std::size_t kCounts[] = {0,   1,   3,    kLanes, kLanes + 1, 8 * kLanes + 2,
                                   255, 257, 4095, 4096,   4097,       2 * kBlock + 77};

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts;
  for (ElementType gradient :
       {ElementType::kFloat32, ElementType::kBFloat16, ElementType::kFloat16})
    for (ElementType parameter :
         {ElementType::kFloat32, ElementType::kBFloat16, ElementType::kFloat16})
      for (Master master : {Master::kNone, Master::kFloat32, Master::kSplit})
        for (States states : {States::kFloat32, States::kBFloat16, States::kBlock8})
          layouts.push_back({gradient, parameter, master, states});
  return layouts;
}

/// Each rule with the options that change its arithmetic.
std::vector<Hyperparameters> Variants() {
  std::vector<Hyperparameters> variants;
  for (double decay : {0.0, 0.1})
    for (bool maximize : {false, true}) {
      for (Rule rule : {Rule::kAdamW, Rule::kAdam})
        for (bool amsgrad : {false, true})
          for (double beta1 : {0.9, 0.3})
            variants.push_back({.rule = rule,
                                .beta1 = beta1,
                                .weight_decay = decay,
                                .amsgrad = amsgrad,
                                .maximize = maximize});
      const Hyperparameters sgd{.rule = Rule::kSgd, .weight_decay = decay, .maximize = maximize};
      variants.push_back(sgd);
      for (bool nesterov : {false, true}) {
        variants.push_back(sgd);
        variants.back().momentum = 0.9;
        variants.back().dampening = nesterov ? 0 : 0.4;
        variants.back().nesterov = nesterov;
      }
      for (Rule rule : {Rule::kAdagrad, Rule::kLion})
        variants.push_back({.rule = rule, .weight_decay = decay, .maximize = maximize});
    }
  return variants;
}

class UpdateTest : public ::testing::TestWithParam<KernelTarget> {
 protected:
  void SetUp() override {
    if (!IsSupported(GetParam())) GTEST_SKIP() << "this CPU does not run it";
  }

  /// `body` of every pair that has a step, of every fifth in builds that are slow, until one fails.
  template <typename Body>
  static void ForEach(Body body) {
    // There are 81 layouts, so that those with one variant are not those with the next.
    const int every = tidegate::testing::kIsSlowBuild && !tidegate::testing::TestsAll() ? 5 : 1;
    int pair = 0;
    for (const Hyperparameters& h : Variants())
      for (const Layout& layout : Layouts()) {
        if (pair++ % every != 0 || !CheckSupported(h, layout).ok()) continue;
        body(h, layout);
        if (HasFatalFailure()) return;
      }
  }
};

std::string Case(const Hyperparameters& h, const Layout& layout, std::size_t count) {
  return std::string(NameOf(h.rule)) + " " + Describe(layout) + ", " + std::to_string(count) +
         " elements, decay " + std::to_string(h.weight_decay) + (h.amsgrad ? ", amsgrad" : "") +
         (h.nesterov ? ", nesterov" : "") + (h.maximize ? ", maximize" : "");
}

/// Runs one step of both on equal tensors and compares all that they wrote.
void ExpectTheReference(KernelTarget target, const Hyperparameters& h, const Layout& layout,
                        std::size_t count, Values values, std::size_t offset, std::uint64_t step,
                        double factor = 0.37) {
  const Coefficients c = CoefficientsOf(h, step, factor, 5);
  Tensors expected(h, layout, count, values, offset, count + step);
  Tensors found = expected;
  std::vector<BlockSums> expected_sums(count / kBlock + 1);
  std::vector<BlockSums> found_sums = expected_sums;
  FindReferenceUpdate(h, layout)(expected.operands(), 0, count, c, expected_sums.data());
  FindUpdateFor(target, h, layout)(found.operands(), 0, count, c, found_sums.data());
  ASSERT_EQ(found.Difference(expected), "") << Case(h, layout, count);
  for (std::size_t i = 0; i < found_sums.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint64_t>(found_sums[i].squares),
              std::bit_cast<std::uint64_t>(expected_sums[i].squares))
        << "sum " << i << " of " << Case(h, layout, count);
}

TEST_P(UpdateTest, GivesTheBitsOfTheReference) {
  ForEach([](const Hyperparameters& h, const Layout& layout) {
    for (std::size_t count : kCounts) {
      ExpectTheReference(GetParam(), h, layout, count, Values::kOrdinary, 0, 1);
      if (HasFatalFailure()) return;
    }
  });
}

TEST_P(UpdateTest, GivesTheBitsOfTheReferenceAtLaterSteps) {
  ForEach([](const Hyperparameters& h, const Layout& layout) {
    ExpectTheReference(GetParam(), h, layout, 500, Values::kOrdinary, 0, 1000);
  });
}

TEST_P(UpdateTest, GivesTheBitsOfTheReferenceFromAnyElementOn) {
  ForEach([](const Hyperparameters& h, const Layout& layout) {
    for (std::size_t offset : {1, 7})
      ExpectTheReference(GetParam(), h, layout, 203, Values::kOrdinary, offset, 2);
  });
}

TEST_P(UpdateTest, NansInfinitiesAndSubnormalsGoWhereTheReferenceTakesThem) {
  ForEach([](const Hyperparameters& h, const Layout& layout) {
    ExpectTheReference(GetParam(), h, layout, 1003, Values::kSpecial, 0, 3);
  });
}

TEST_P(UpdateTest, AFactorThatIsNotFiniteDoesWhatItDoesInTheReference) {
  ForEach([](const Hyperparameters& h, const Layout& layout) {
    for (double factor : {HUGE_VAL, std::nan("")})
      ExpectTheReference(GetParam(), h, layout, 21, Values::kOrdinary, 0, 3, factor);
  });
}

#if defined(__x86_64__)
TEST_P(UpdateTest, ACallerThatFlushesSubnormalsGetsTheSameBits) {
  constexpr unsigned kFlushToZeroAndDenormalsAreZero = 0x8040;
  ForEach([](const Hyperparameters& h, const Layout& layout) {
    const Coefficients c = CoefficientsOf(h, 3, 1e-3, 5);
    const Tensors before(h, layout, 1003, Values::kSpecial, 0, 4);
    Tensors expected = before;
    Tensors found = before;
    Tensors by_reference = before;
    const UpdateFunction update = FindUpdateFor(GetParam(), h, layout);
    update(expected.operands(), 0, 1003, c, nullptr);
    const unsigned kept = _mm_getcsr();
    _mm_setcsr(kept | kFlushToZeroAndDenormalsAreZero);
    update(found.operands(), 0, 1003, c, nullptr);
    const unsigned after = _mm_getcsr();
    FindReferenceUpdate(h, layout)(by_reference.operands(), 0, 1003, c, nullptr);
    _mm_setcsr(kept);
    EXPECT_EQ(after, kept | kFlushToZeroAndDenormalsAreZero) << "and keeps its choice";
    ASSERT_EQ(found.Difference(expected), "") << Case(h, layout, 1003);
    ASSERT_EQ(by_reference.Difference(expected), "") << Case(h, layout, 1003);
  });
}
#endif

TEST_P(UpdateTest, ATensorInPiecesGivesTheBitsOfTheWhole) {
  ForEach([](const Hyperparameters& h, const Layout& layout) {
    const std::size_t count = 5 * kBlock + 123;
    const Coefficients c = CoefficientsOf(h, 4, 1, 5);
    const UpdateFunction update = FindUpdateFor(GetParam(), h, layout);
    Tensors whole(h, layout, count, Values::kOrdinary, 0, 1);
    Tensors pieces = whole;
    std::vector<BlockSums> whole_sums(6);
    std::vector<BlockSums> pieces_sums(6);
    update(whole.operands(), 0, count, c, whole_sums.data());
    const TensorOperands operands = pieces.operands();
    update(operands, 3 * kBlock, count - 3 * kBlock, c, pieces_sums.data() + 3);
    update(operands, 0, kBlock, c, pieces_sums.data());
    update(operands, kBlock, 2 * kBlock, c, pieces_sums.data() + 1);
    ASSERT_EQ(pieces.Difference(whole), "") << Case(h, layout, count);
    for (std::size_t i = 0; i < whole_sums.size(); ++i)
      ASSERT_EQ(pieces_sums[i].squares, whole_sums[i].squares);
  });
}

TEST_P(UpdateTest, HalvesOfAnyTwoValuesJoinAsThoseOfTheReference) {
  // A step of SGD with lr 0 splits what it joined, which tells all but the payload of a NaN.
  const Hyperparameters h{.rule = Rule::kSgd, .lr = 0};
  const Layout layout{ElementType::kBFloat16, ElementType::kBFloat16, Master::kSplit};
  const UpdateFunction update = FindUpdateFor(GetParam(), h, layout);
  const Coefficients c = CoefficientsOf(h, 1, 1, 0);
  constexpr std::size_t kAll = 65536;
  const std::vector<std::uint16_t> gradient(kAll, 0x3f80);
  std::vector<std::uint16_t> every(kAll);
  std::iota(every.begin(), every.end(), std::uint16_t{0});
  const auto expect = [&](std::vector<std::uint16_t> upper, std::vector<std::uint16_t> lower) {
    std::vector<SplitFloat> expected(kAll);
    for (std::size_t i = 0; i < kAll; ++i) expected[i] = Split(Joined({upper[i], lower[i]}));
    TensorOperands operands{.count = kAll, .gradient = gradient.data()};
    operands.parameter = upper.data();
    operands.master = lower.data();
    update(operands, 0, kAll, c, nullptr);
    for (std::size_t i = 0; i < kAll; ++i)
      ASSERT_TRUE(upper[i] == expected[i].upper && lower[i] == expected[i].lower) << i;
  };
  for (std::uint16_t lower : {0, 1, 2, 77, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xabcd, 0xfffe, 0xffff})
    ASSERT_NO_FATAL_FAILURE(expect(every, std::vector<std::uint16_t>(kAll, lower))) << lower;
  for (std::uint16_t upper : {0, 1, 0x7f, 0x80, 0x3f7f, 0x3f80, 0x7f7f, 0x7f80, 0x7f81, 0x7fff})
    for (std::uint16_t sign : {0, 0x8000}) {
      const auto both = static_cast<std::uint16_t>(upper | sign);
      ASSERT_NO_FATAL_FAILURE(expect(std::vector<std::uint16_t>(kAll, both), every)) << both;
    }
}

TEST_P(UpdateTest, SumsAloneAreThoseOfTheStep) {
  for (ElementType type : {ElementType::kFloat32, ElementType::kBFloat16, ElementType::kFloat16})
    for (Values values : {Values::kOrdinary, Values::kSpecial})
      for (std::size_t count : kCounts) {
        const Layout layout{.gradient = type};
        Tensors tensors({}, layout, count, values, 1, 9);
        std::vector<BlockSums> step(count / kBlock + 1);
        std::vector<BlockSums> alone = step;
        std::vector<BlockSums> reference = step;
        const void* const gradient = tensors.operands().gradient;
        FindSumsFor(GetParam(), type)(gradient, 0, count, 0.5f, alone.data());
        FindReferenceSums(type)(gradient, 0, count, 0.5f, reference.data());
        FindUpdateFor(GetParam(), {}, layout)(tensors.operands(), 0, count,
                                              CoefficientsOf({}, 1, 0.5, 0), step.data());
        for (std::size_t i = 0; i < step.size(); ++i) {
          const auto bits = std::bit_cast<std::uint64_t>(reference[i].squares);
          ASSERT_EQ(std::bit_cast<std::uint64_t>(alone[i].squares), bits) << count;
          ASSERT_EQ(std::bit_cast<std::uint64_t>(step[i].squares), bits) << count;
        }
      }
}

/// Without those that leave the step to the reference.
std::vector<KernelTarget> VectorTargets() {
  std::vector<KernelTarget> targets;
  for (KernelTarget target : KernelTargets())
    if (FindSumsFor(target, ElementType::kFloat32) != nullptr) targets.push_back(target);
  return targets;
}

INSTANTIATE_TEST_SUITE_P(Targets, UpdateTest, ::testing::ValuesIn(VectorTargets()),
                         [](const auto& info) { return std::string(NameOfTarget(info.param)); });

TEST(SumsTest, AreInfiniteOrNanExactlyWhereAGradientIs) {
  std::vector<float> gradient(kBlock + 5, 3e38f);
  BlockSums sums[2];
  const auto sum = [&] {
    FindSums(ElementType::kFloat32)(gradient.data(), 0, gradient.size(), 1, sums);
  };
  sum();
  EXPECT_TRUE(sums[0].finite());
  EXPECT_NEAR(sums[0].squares, kBlock * 9e76, 1e73);
  gradient[kBlock + 4] = HUGE_VALF;
  sum();
  EXPECT_TRUE(sums[0].finite());
  EXPECT_FALSE(sums[1].finite());
  gradient[77] = NAN;
  sum();
  EXPECT_TRUE(std::isnan(sums[0].squares));
}

/// The formulas of the papers, in double.
TEST(ReferenceTest, AdamWIsThatOfDoubleWithinAMillionth) {
  const Hyperparameters h{.lr = 1e-2, .weight_decay = 0.1};
  const std::size_t count = 1000;
  Tensors tensors(h, {}, count, Values::kOrdinary, 0, 3);
  for (std::uint64_t step = 1; step <= 20; ++step) {
    const Tensors before = tensors;
    FindUpdate(h, {}).value()(tensors.operands(), 0, count, CoefficientsOf(h, step, 1, 0), nullptr);
    for (std::size_t i = 0; i < count; ++i) {
      const double gradient = before.gradient(i);
      const double m = h.beta1 * before.state(0, i) + (1 - h.beta1) * gradient;
      const double v = h.beta2 * before.state(1, i) + (1 - h.beta2) * gradient * gradient;
      const double corrected_m = m / (1 - std::pow(h.beta1, step));
      const double corrected_v = v / (1 - std::pow(h.beta2, step));
      const double kept = before.parameter(i) * (1 - h.lr * h.weight_decay);
      const double change = h.lr * corrected_m / (std::sqrt(corrected_v) + h.eps);
      ASSERT_NEAR(tensors.parameter(i), kept - change, 1e-6 * (std::abs(kept) + std::abs(change)));
      ASSERT_NEAR(tensors.state(0, i), m, 1e-6 * (std::abs(gradient) + std::abs(m)));
      ASSERT_NEAR(tensors.state(1, i), v, 1e-6 * v);
    }
  }
}

}  // namespace
}  // namespace tidegate::offload::testing
