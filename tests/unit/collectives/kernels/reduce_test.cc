#include "collectives/kernels/reduce.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "collectives/kernels/reduce_targets.h"
#include "common/status.h"
#include "tests/unit/collectives/kernels/reduce_fixture.h"
#include "tests/unit/collectives/kernels/reference.h"

// Single facts about the kernels, each with the values that would betray the usual mistake.

namespace tidegate::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST_P(ReduceTest, SixteenBitFloatsAreRoundedOnce) {
  // Each small term is half of the last place of 1: rounding after each addition would lose both.
  const std::uint16_t brain =
      ReduceOne<std::uint16_t>(DataType::kBFloat16, ReduceOp::kSum,
                               {0x3f80, EncodeSmall(kBrain, 0x1p-8), EncodeSmall(kBrain, 0x1p-8)});
  EXPECT_EQ(DecodeSmall(kBrain, brain), 1 + 0x1p-7);
  const std::uint16_t half =
      ReduceOne<std::uint16_t>(DataType::kFloat16, ReduceOp::kSum,
                               {0x3c00, EncodeSmall(kHalf, 0x1p-11), EncodeSmall(kHalf, 0x1p-11)});
  EXPECT_EQ(DecodeSmall(kHalf, half), 1 + 0x1p-10);
}

TEST_P(ReduceTest, AverageDividesBeforeRounding) {
  // The sum 131008 is beyond the largest half, the average 65504 is not.
  EXPECT_EQ(ReduceOne<std::uint16_t>(DataType::kFloat16, ReduceOp::kAvg, {0x7bff, 0x7bff}), 0x7bff);
}

TEST_P(ReduceTest, AverageIsADivisionAndNotAMultiplicationByTheReciprocal) {
  const volatile float third = 1.0f / 3;
  ASSERT_NE(5.0f / 3, 5.0f * third);
  EXPECT_EQ(ReduceOne<float>(DataType::kFloat32, ReduceOp::kAvg, {5, 0, 0}), 5.0f / 3);
}

TEST_P(ReduceTest, PremultiplicationIsNotFused) {
  // The square of a is 1 + 2^-11 + 2^-24, whose last term a fused multiply-add would keep.
  const float a = 1 + 0x1p-12f;
  EXPECT_EQ(ReduceOne<float>(DataType::kFloat32, ReduceOp::kPremulSum, {1 + 0x1p-11f, a}, {-1, a}),
            0.0f);
  const double b = 1 + 0x1p-27;
  EXPECT_EQ(ReduceOne<double>(DataType::kFloat64, ReduceOp::kPremulSum, {1 + 0x1p-26, b}, {-1, b}),
            0.0);
}

TEST_P(ReduceTest, EachSourceHasItsOwnFactor) {
  EXPECT_EQ(ReduceOne<float>(DataType::kFloat32, ReduceOp::kPremulSum, {1, 2, 3}, {1, 10, 100}),
            321.0f);
  EXPECT_EQ(DecodeSmall(kBrain, ReduceOne<std::uint16_t>(DataType::kBFloat16, ReduceOp::kPremulSum,
                                                         {0x3f80, 0x3f80}, {0.5, -2})),
            -1.5);
}

TEST_P(ReduceTest, FactorsOfSixteenBitFloatsAreNotRoundedToTheirType) {
  // 380 / 3 is 126.67; with a third rounded to bfloat16, 0.333984375, it would be 126.91 and then
  // 127.
  const std::uint16_t bits = ReduceOne<std::uint16_t>(DataType::kBFloat16, ReduceOp::kPremulSum,
                                                      {EncodeSmall(kBrain, 380)}, {1.0 / 3});
  EXPECT_EQ(DecodeSmall(kBrain, bits), 126.5);
}

TEST_P(ReduceTest, TheOrderIsTheSources) {
  // From the other end the small terms would add up first and survive.
  EXPECT_EQ(ReduceOne<float>(DataType::kFloat32, ReduceOp::kSum, {0x1p24f, 1, 1, 1, 1}), 0x1p24f);
  EXPECT_EQ(ReduceOne<float>(DataType::kFloat32, ReduceOp::kSum, {1, 1, 1, 1, 0x1p24f}),
            0x1p24f + 4);
}

TEST_P(ReduceTest, IntegersWrap) {
  EXPECT_EQ(ReduceOne<std::int8_t>(DataType::kInt8, ReduceOp::kSum, {127, 1}), -128);
  EXPECT_EQ(ReduceOne<std::uint8_t>(DataType::kUint8, ReduceOp::kSum, {200, 100}), 44);
  EXPECT_EQ(ReduceOne<std::int32_t>(DataType::kInt32, ReduceOp::kProduct, {1 << 30, 3}),
            -(1 << 30));
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(ReduceOne<std::int64_t>(DataType::kInt64, ReduceOp::kSum, {most, 1}), -most - 1);
}

TEST_P(ReduceTest, UnsignedIntegersWrapAndAverageAsSuch) {
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(ReduceOne<std::uint64_t>(DataType::kUint64, ReduceOp::kSum, {most, 3}), 2u);
  EXPECT_EQ(ReduceOne<std::uint64_t>(DataType::kUint64, ReduceOp::kAvg, {most, 0}), most / 2);
  EXPECT_EQ(ReduceOne<std::uint32_t>(DataType::kUint32, ReduceOp::kAvg, {~0u, ~0u}), ~0u);
  EXPECT_EQ(ReduceOne<std::uint16_t>(DataType::kUint16, ReduceOp::kMax, {1, 0x8000}), 0x8000);
  EXPECT_EQ(ReduceOne<std::uint64_t>(DataType::kUint64, ReduceOp::kMin, {most, 1}), 1u);
}

TEST_P(ReduceTest, BitwiseOperationsActOnEveryBit) {
  EXPECT_EQ(ReduceOne<std::uint8_t>(DataType::kUint8, ReduceOp::kBitAnd, {0b1110, 0b0111}), 0b0110);
  EXPECT_EQ(ReduceOne<std::int16_t>(DataType::kInt16, ReduceOp::kBitOr, {-32768, 1}), -32767);
  EXPECT_EQ(ReduceOne<std::int64_t>(DataType::kInt64, ReduceOp::kBitXor, {-1, 5, 5, 1}), -2);
}

TEST_P(ReduceTest, BitwiseOperationsOnBoolsAreLogical) {
  // Bit by bit these bytes, each a true, have nothing in common.
  EXPECT_EQ(ReduceOne<std::uint8_t>(DataType::kBool, ReduceOp::kBitAnd, {1, 2}), 1);
  EXPECT_EQ(ReduceOne<std::uint8_t>(DataType::kBool, ReduceOp::kBitOr, {0, 4}), 1);
  EXPECT_EQ(ReduceOne<std::uint8_t>(DataType::kBool, ReduceOp::kBitXor, {1, 2}), 0);
  EXPECT_EQ(ReduceOne<std::uint8_t>(DataType::kBool, ReduceOp::kBitXor, {1, 2, 4}), 1);
}

TEST_P(ReduceTest, ComplexProductsMixTheirParts) {
  using Pair = std::array<double, 2>;
  // (1 + 2i)(3 - i) = 5 + 5i, and times i.
  EXPECT_EQ(ReduceOne<Pair>(DataType::kComplex128, ReduceOp::kProduct, {{1, 2}, {3, -1}, {0, 1}}),
            (Pair{-5, 5}));
  using Halves = std::array<std::uint16_t, 2>;
  const auto halves = [](double real, double imaginary) {
    return Halves{EncodeSmall(kHalf, real), EncodeSmall(kHalf, imaginary)};
  };
  EXPECT_EQ(ReduceOne<Halves>(DataType::kComplex32, ReduceOp::kProduct,
                              {halves(1, 2), halves(3, -1), halves(0, 1)}),
            halves(-5, 5));
}

TEST_P(ReduceTest, ComplexProductsAreNotFused) {
  // ac is 1 + 2^-11 + 2^-24 and bd 1 + 2^-11: a fused multiply-add would keep the last term.
  using Pair = std::array<float, 2>;
  const float a = 1 + 0x1p-12f;
  const Pair product =
      ReduceOne<Pair>(DataType::kComplex64, ReduceOp::kProduct, {{a, 1}, {a, 1 + 0x1p-11f}});
  EXPECT_EQ(product[0], 0.0f);
}

TEST_P(ReduceTest, ComplexHalvesAreRoundedOnce) {
  // Rounded to a half after each step, the small terms would be lost in both parts.
  using Halves = std::array<std::uint16_t, 2>;
  const Halves one = {EncodeSmall(kHalf, 1), EncodeSmall(kHalf, -1)};
  const Halves small = {EncodeSmall(kHalf, 0x1p-11), EncodeSmall(kHalf, -0x1p-11)};
  const Halves sum = ReduceOne<Halves>(DataType::kComplex32, ReduceOp::kSum, {one, small, small});
  EXPECT_EQ(DecodeSmall(kHalf, sum[0]), 1 + 0x1p-10);
  EXPECT_EQ(DecodeSmall(kHalf, sum[1]), -1 - 0x1p-10);
}

TEST_P(ReduceTest, IntegerAverageIsExactAndTruncates) {
  EXPECT_EQ(ReduceOne<std::int32_t>(DataType::kInt32, ReduceOp::kAvg, {-3, 0}), -1);
  EXPECT_EQ(ReduceOne<std::int32_t>(DataType::kInt32, ReduceOp::kAvg, {3, 0}), 1);
  EXPECT_EQ(ReduceOne<std::int8_t>(DataType::kInt8, ReduceOp::kAvg, {127, 127, 126}), 126);
  EXPECT_EQ(ReduceOne<std::uint8_t>(DataType::kUint8, ReduceOp::kAvg, {255, 255}), 255);
}

TEST_P(ReduceTest, MinAndMaxAreSignedWhereTheTypeIs) {
  EXPECT_EQ(ReduceOne<std::int8_t>(DataType::kInt8, ReduceOp::kMin, {1, -1}), -1);
  EXPECT_EQ(ReduceOne<std::uint8_t>(DataType::kUint8, ReduceOp::kMin, {1, 255}), 1);
}

TEST_P(ReduceTest, MinAndMaxPassOnANanFromAnySource) {
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_TRUE(std::isnan(ReduceOne<float>(DataType::kFloat32, op, {kNan, 1, 2})));
    EXPECT_TRUE(std::isnan(ReduceOne<float>(DataType::kFloat32, op, {1, kNan, 2})));
    EXPECT_TRUE(std::isnan(ReduceOne<float>(DataType::kFloat32, op, {1, 2, kNan})));
  }
}

TEST_P(ReduceTest, MinAndMaxKeepTheFirstOfTwoZeros) {
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_TRUE(std::signbit(ReduceOne<float>(DataType::kFloat32, op, {-0.0f, 0.0f})));
    EXPECT_FALSE(std::signbit(ReduceOne<float>(DataType::kFloat32, op, {0.0f, -0.0f})));
  }
}

TEST_P(ReduceTest, BoolsComeOutAsZeroOrOne) {
  EXPECT_EQ(ReduceOne<std::uint8_t>(DataType::kBool, ReduceOp::kSum, {1, 2, 4}), 1);
  EXPECT_EQ(ReduceOne<std::uint8_t>(DataType::kBool, ReduceOp::kProduct, {1, 2, 4}), 1);
  EXPECT_EQ(ReduceOne<std::uint8_t>(DataType::kBool, ReduceOp::kProduct, {1, 0}), 0);
}

TEST_P(ReduceTest, SixteenBitFloatsKeepANanANan) {
  // Rounding these bits as those of a number would carry into the sign and give -0.
  const auto all_ones = static_cast<double>(std::bit_cast<float>(0x7fffffffu));
  EXPECT_TRUE(std::isnan(DecodeSmall(
      kBrain,
      ReduceOne<std::uint16_t>(DataType::kBFloat16, ReduceOp::kPremulSum, {0x3f80}, {all_ones}))));
  // Cutting these off would leave nothing of the payload, which is infinity.
  const auto lowest = static_cast<double>(std::bit_cast<float>(0x7f800001u));
  for (DataType dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    const SmallFormat format = dtype == DataType::kFloat16 ? kHalf : kBrain;
    const std::uint16_t one = EncodeSmall(format, 1);
    EXPECT_TRUE(std::isnan(DecodeSmall(
        format, ReduceOne<std::uint16_t>(dtype, ReduceOp::kPremulSum, {one}, {lowest}))));
  }
}

// Every 16-bit value, through factors that put results everywhere: ties of the rounding,
// subnormals, overflow.
TEST_P(ReduceTest, SixteenBitConversionsAreExhaustivelyRight) {
  std::vector<std::uint16_t> all(0x10000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (double factor : {1.0, 1 + 0x1p-11, 1 + 0x1p-8, 1.0 / 3, 0x1p-1, 0x1.8p-9, 0x1p-24, 0x1.1p15,
                        0x1.fffffep127, 0x1p-149}) {
    for (DataType dtype : {DataType::kBFloat16, DataType::kFloat16}) {
      const SmallFormat format = dtype == DataType::kFloat16 ? kHalf : kBrain;
      const auto result = ReduceAll<std::uint16_t>(dtype, ReduceOp::kPremulSum, {all}, {factor});
      for (std::size_t i = 0; i < all.size(); ++i) {
        const float product =
            static_cast<float>(DecodeSmall(format, all[i])) * static_cast<float>(factor);
        if (std::isnan(product))
          ASSERT_TRUE(std::isnan(DecodeSmall(format, result[i]))) << i << " * " << factor;
        else
          ASSERT_EQ(result[i], EncodeSmall(format, product)) << i << " * " << factor;
      }
    }
  }
}

TEST_P(ReduceTest, AverageDividesByTheContributionsNotByTheSources) {
  // Two sources that hold the sums of five ranks.
  const std::vector<float> sums[] = {{6.0F}, {4.0F}};
  const std::byte* sources[] = {reinterpret_cast<const std::byte*>(sums[0].data()),
                                reinterpret_cast<const std::byte*>(sums[1].data())};
  float mean = 0;
  FindReduceKernelFor(GetParam(), DataType::kFloat32, ReduceOp::kAvg)(
      {reinterpret_cast<std::byte*>(&mean), sources, 2, 1, nullptr, 5});
  EXPECT_EQ(mean, 2.0F);
}

TEST_P(ReduceTest, NansOfSixteenBitsAreTheSameOnEveryTarget) {
  std::vector<std::uint16_t> all(0x10000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto* source = reinterpret_cast<const std::byte*>(all.data());
  for (DataType dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    std::vector<std::uint16_t> baseline(all.size());
    FindReduceKernelFor(KernelTargets().back(), dtype, ReduceOp::kSum)(
        {reinterpret_cast<std::byte*>(baseline.data()), &source, 1, all.size(), nullptr, 1});
    EXPECT_EQ(ReduceAll<std::uint16_t>(dtype, ReduceOp::kSum, {all}), baseline) << NameOf(dtype);
  }
}

#if defined(__x86_64__)
TEST_P(ReduceTest, FlushingOfSubnormalsByTheCallerChangesNothing) {
  constexpr unsigned kFlushToZeroAndDenormalsAreZero = 0x8040;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlushToZeroAndDenormalsAreZero);
  const float sum = ReduceOne<float>(DataType::kFloat32, ReduceOp::kSum, {0x1p-140f, 0x1p-149f});
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(sum, 0x1p-140f + 0x1p-149f);
  EXPECT_EQ(after & kFlushToZeroAndDenormalsAreZero, kFlushToZeroAndDenormalsAreZero);
}
#endif

INSTANTIATE_TEST_SUITE_P(Targets, ReduceTest, ::testing::ValuesIn(KernelTargets()),
                         [](const auto& info) { return std::string(NameOfTarget(info.param)); });

TEST(FindReduceKernelTest, ServesExactlyThePairsWithAMeaning) {
  int served = 0;
  for (int d = 0; d <= static_cast<int>(DataType::kOther1); ++d) {
    for (int o = 0; o <= static_cast<int>(ReduceOp::kBitXor); ++o) {
      const auto dtype = static_cast<DataType>(d);
      const auto op = static_cast<ReduceOp>(o);
      const bool meaningful = HasMeaning(dtype, op);
      served += meaningful;
      SCOPED_TRACE(std::string(NameOf(op)) + " of " + std::string(NameOf(dtype)));
      for (KernelTarget target : KernelTargets()) {
        if (!IsSupported(target)) continue;
        EXPECT_EQ(FindReduceKernelFor(target, dtype, op) != nullptr, meaningful)
            << NameOfTarget(target);
      }
      const Result<ReduceKernel> found = FindReduceKernel(dtype, op);
      EXPECT_EQ(found.ok(), meaningful);
      if (found.ok()) continue;
      EXPECT_EQ(found.status().code(), StatusCode::kUnsupported);
      EXPECT_NE(found.status().message().find(NameOf(dtype)), std::string::npos);
      EXPECT_NE(found.status().message().find(NameOf(op)), std::string::npos);
    }
  }
  // 9 floats by 6, 8 integers by 8, 3 complex by 4, bool by 7.
  EXPECT_EQ(served, 9 * 6 + 8 * 8 + 3 * 4 + 7);
}

}  // namespace
}  // namespace tidegate::testing
