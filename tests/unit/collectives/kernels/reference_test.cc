#include "tests/unit/collectives/kernels/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

// The reference is the judge of the kernels, so it is held against values written down by hand.

namespace tidegate::testing {
namespace {

TEST(ReferenceTest, DecodesKnownHalves) {
  EXPECT_EQ(DecodeSmall(kHalf, 0x3c00), 1.0);
  EXPECT_EQ(DecodeSmall(kHalf, 0xc000), -2.0);
  EXPECT_EQ(DecodeSmall(kHalf, 0x7bff), 65504.0);
  EXPECT_EQ(DecodeSmall(kHalf, 0x0001), 0x1p-24);
  EXPECT_EQ(DecodeSmall(kHalf, 0x0400), 0x1p-14);
  EXPECT_EQ(DecodeSmall(kHalf, 0xfc00), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(DecodeSmall(kHalf, 0x7c01)));
  EXPECT_TRUE(std::signbit(DecodeSmall(kHalf, 0x8000)));
}

TEST(ReferenceTest, DecodesKnownBrainFloats) {
  EXPECT_EQ(DecodeSmall(kBrain, 0x3f80), 1.0);
  EXPECT_EQ(DecodeSmall(kBrain, 0xc049), -3.140625);
  EXPECT_EQ(DecodeSmall(kBrain, 0x0001), 0x1p-133);
  EXPECT_EQ(DecodeSmall(kBrain, 0x7f7f), 0x1.fep127);
}

TEST(ReferenceTest, EncodesTiesToEven) {
  EXPECT_EQ(EncodeSmall(kHalf, 1 + 0x1p-11), 0x3c00);
  EXPECT_EQ(EncodeSmall(kHalf, 1 + 0x3p-11), 0x3c02);
  EXPECT_EQ(EncodeSmall(kHalf, 0x1p-25), 0x0000);
  EXPECT_EQ(EncodeSmall(kHalf, 0x3p-25), 0x0002);
  EXPECT_EQ(EncodeSmall(kHalf, 65519.99), 0x7bff);
  EXPECT_EQ(EncodeSmall(kHalf, 65520), 0x7c00);
  EXPECT_EQ(EncodeSmall(kHalf, 2 - 0x1p-12), 0x4000);
  EXPECT_EQ(EncodeSmall(kBrain, 1 + 0x1p-8), 0x3f80);
  EXPECT_EQ(EncodeSmall(kBrain, -(1 + 0x3p-8)), 0xbf82);
}

TEST(ReferenceTest, EncodingUndoesDecoding) {
  for (SmallFormat format : {kHalf, kBrain}) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const double value = DecodeSmall(format, static_cast<std::uint16_t>(bits));
      if (std::isnan(value)) continue;
      ASSERT_EQ(EncodeSmall(format, value), bits);
    }
  }
}

}  // namespace
}  // namespace tidegate::testing
