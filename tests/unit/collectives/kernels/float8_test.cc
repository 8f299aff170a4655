#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <vector>

#include "collectives/kernels/dtype.h"
#include "collectives/kernels/reduce_targets.h"
#include "tests/unit/collectives/kernels/reduce_fixture.h"
#include "tests/unit/collectives/kernels/reference.h"

// The conversions of the 8-bit floats. tests/python/test_float8.py compares them with torch's.

namespace tidegate::testing {
namespace {

constexpr std::initializer_list<DataType> kFloat8s = {
    DataType::kFloat8E4M3FN, DataType::kFloat8E5M2, DataType::kFloat8E4M3FNUZ,
    DataType::kFloat8E5M2FNUZ, DataType::kFloat8E8M0FNU};

using Codes = std::vector<std::uint8_t>;

class Float8Test : public ReduceTest {
 protected:
  std::uint8_t Sum(DataType dtype, std::initializer_list<std::uint8_t> codes) {
    return ReduceOne<std::uint8_t>(dtype, ReduceOp::kSum, codes);
  }
};

TEST_P(Float8Test, ConversionsAreThoseOfTheReference) {
  Codes all(256);
  std::iota(all.begin(), all.end(), std::uint8_t{0});
  // The products reach ties of the rounding, subnormals and overflow of each format.
  std::vector<double> factors = {0.0,
                                 -0.0,
                                 0x1p-149,
                                 0x1p-127,
                                 0x1.8p-127,
                                 0x1.fffffep127,
                                 -1.0 / 3,
                                 std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::quiet_NaN()};
  for (int exponent = -24; exponent <= 24; ++exponent)
    for (double fraction = 1; fraction < 2; fraction += 0x1p-4) {
      factors.push_back(std::ldexp(fraction, exponent));
      factors.push_back(std::ldexp(std::nextafter(static_cast<float>(fraction), 0.0f), exponent));
    }
  for (DataType dtype : kFloat8s) {
    const SmallFormat format = *FormatOf(dtype);
    for (double factor : factors) {
      const Codes found = ReduceAll<std::uint8_t>(dtype, ReduceOp::kPremulSum, {all}, {factor});
      for (std::uint8_t code : all) {
        const float product =
            static_cast<float>(DecodeSmall(format, code)) * static_cast<float>(factor);
        if (std::isnan(product))
          ASSERT_TRUE(std::isnan(DecodeSmall(format, found[code])))
              << NameOf(dtype) << " " << int{code} << " * " << factor;
        else
          ASSERT_EQ(found[code], EncodeSmall(format, product))
              << NameOf(dtype) << " " << int{code} << " * " << factor;
      }
    }
  }
}

TEST_P(Float8Test, SumsAreRoundedOnce) {
  // 16 + 1 + 1 in e4m3: the ones are half of the last place of 16 and would both be lost.
  EXPECT_EQ(Sum(DataType::kFloat8E4M3FN, {0x58, 0x38, 0x38}), 0x59);
  // 8 + 1 + 1 in e5m2.
  EXPECT_EQ(Sum(DataType::kFloat8E5M2, {0x48, 0x3c, 0x3c}), 0x49);
}

TEST_P(Float8Test, TooLargeIsInfinityOrTheGreatestNumberOrNan) {
  EXPECT_EQ(Sum(DataType::kFloat8E4M3FN, {0x7e, 0x5c}), 0x7e) << "448 + 24 would round to 480";
  EXPECT_EQ(Sum(DataType::kFloat8E4M3FN, {0xfe, 0xfe}), 0xfe);
  EXPECT_EQ(Sum(DataType::kFloat8E5M2, {0x7b, 0x7b}), 0x7c);
  EXPECT_EQ(Sum(DataType::kFloat8E5M2, {0xfb, 0xfb}), 0xfc);
  EXPECT_EQ(Sum(DataType::kFloat8E4M3FNUZ, {0x7f, 0x7f}), 0x80);
  EXPECT_EQ(Sum(DataType::kFloat8E5M2FNUZ, {0xff, 0xff}), 0x80);
  EXPECT_EQ(Sum(DataType::kFloat8E8M0FNU, {0xfe, 0xfe}), 0xff);
}

TEST_P(Float8Test, TheFormatsWithoutANegativeZeroMakeNone) {
  EXPECT_EQ(
      ReduceOne<std::uint8_t>(DataType::kFloat8E4M3FNUZ, ReduceOp::kPremulSum, {0x40}, {-0.0}),
      0x00);
  EXPECT_EQ(ReduceOne<std::uint8_t>(DataType::kFloat8E4M3FN, ReduceOp::kPremulSum, {0x38}, {-0.0}),
            0x80);
}

TEST_P(Float8Test, AnElementKeepsToItsOwnByte) {
  // Four elements share a lane while they are converted; each has a neighbour that overflows.
  const Codes codes = {0x7e, 0x01, 0xfe, 0x80, 0x38, 0x7f, 0x00, 0xb8};
  EXPECT_EQ(ReduceAll<std::uint8_t>(DataType::kFloat8E4M3FN, ReduceOp::kSum, {codes, codes}),
            (Codes{0x7e, 0x02, 0xfe, 0x80, 0x40, 0x7f, 0x00, 0xc0}));
}

INSTANTIATE_TEST_SUITE_P(Targets, Float8Test, ::testing::ValuesIn(KernelTargets()),
                         [](const auto& info) { return std::string(NameOfTarget(info.param)); });

}  // namespace
}  // namespace tidegate::testing
