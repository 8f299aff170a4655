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

TEST(ReferenceTest, DecodesKnownEightBitFloats) {
  EXPECT_EQ(DecodeSmall(kE4M3FN, 0x7e), 448.0);
  EXPECT_EQ(DecodeSmall(kE4M3FN, 0x81), -0x1p-9);
  EXPECT_TRUE(std::isnan(DecodeSmall(kE4M3FN, 0xff)));
  EXPECT_EQ(DecodeSmall(kE5M2, 0x7b), 57344.0);
  EXPECT_EQ(DecodeSmall(kE5M2, 0xfc), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(DecodeSmall(kE4M3FNUZ, 0xff), -240.0);
  EXPECT_TRUE(std::isnan(DecodeSmall(kE4M3FNUZ, 0x80)));
  EXPECT_EQ(DecodeSmall(kE5M2FNUZ, 0x01), 0x1p-17);
  EXPECT_EQ(DecodeSmall(kE8M0FNU, 0x00), 0x1p-127);
  EXPECT_EQ(DecodeSmall(kE8M0FNU, 0xfe), 0x1p127);
  EXPECT_TRUE(std::isnan(DecodeSmall(kE8M0FNU, 0xff)));
}

TEST(ReferenceTest, EncodesTheEndsOfEightBitFloats) {
  EXPECT_EQ(EncodeSmall(kE4M3FN, 464), 0x7e);
  EXPECT_EQ(EncodeSmall(kE4M3FN, -1e9), 0xfe);
  EXPECT_EQ(EncodeSmall(kE5M2, 61440), 0x7c);
  EXPECT_EQ(EncodeSmall(kE5M2, 61439), 0x7b);
  EXPECT_EQ(EncodeSmall(kE4M3FNUZ, -248), 0x80);
  EXPECT_EQ(EncodeSmall(kE4M3FNUZ, -0.0), 0x00);
  EXPECT_EQ(EncodeSmall(kE8M0FNU, 0), 0x00);
  EXPECT_EQ(EncodeSmall(kE8M0FNU, -1.5), 0x80);
}

TEST(ReferenceTest, EncodingUndoesDecoding) {
  for (SmallFormat format : {kHalf, kBrain, kE4M3FN, kE5M2, kE4M3FNUZ, kE5M2FNUZ, kE8M0FNU}) {
    const std::uint32_t codes = format.exponent_bits + format.fraction_bits <= 8 ? 0x100 : 0x10000;
    for (std::uint32_t bits = 0; bits < codes; ++bits) {
      const double value = DecodeSmall(format, static_cast<std::uint16_t>(bits));
      if (std::isnan(value)) continue;
      ASSERT_EQ(EncodeSmall(format, value), bits);
    }
  }
}

}  // namespace
}  // namespace tidegate::testing
