#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "offload/optim/block8.h"
#include "offload/optim/random_bits.h"
#include "offload/optim/scalar_elements.h"
#include "offload/optim/split_master.h"
#include "tests/unit/common/test_extent.h"

// What compressed layouts keep, one value at a time; update_test.cc holds the vectors against it.

namespace tidegate::offload::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SplitMasterTest, EveryValueComesBack) {
  // All 2^32 patterns take ten seconds: the tests of make test take each 65,521st.
  const bool all = tidegate::testing::TestsAll();
  const std::uint64_t stride = all ? 1 : 65521;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += stride) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const SplitFloat split = Split(value);
    const float joined = Joined(split);
    const float upper = FloatFromBFloat16(split.upper);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(joined) && std::isnan(upper)) << std::hex << bits;
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(joined), bits) << std::hex << bits;
    const std::uint16_t nearest = BFloat16FromFloat(value);
    const bool tie = (bits & 0xffff) == 0x8000;
    ASSERT_EQ(split.upper, tie ? (bits >> 16) + 1 : nearest) << std::hex << bits;
  }
}

TEST(SplitMasterTest, TiesGoAwayFromZero) {
  EXPECT_EQ(Split(0x1.01p0f).upper, 0x3f81) << "1 + 1/256, which torch's cast takes to 1";
  EXPECT_EQ(Split(-0x1.01p0f).upper, 0xbf81);
  EXPECT_EQ(Split(0x1.03p0f).upper, 0x3f82);
  EXPECT_EQ(Split(std::numeric_limits<float>::max()).upper, 0x7f80) << "as torch's cast";
}

TEST(SplitMasterTest, ANanKeepsNoPayload) {
  const SplitFloat split = Split(std::bit_cast<float>(0xffffffffu));
  EXPECT_EQ(split.upper, 0x7fc0);
  EXPECT_EQ(split.lower, 0);
}

/// Of a pair of any two halves.
void ExpectJoinedNearUpper(SplitFloat pair) {
  const float upper = FloatFromBFloat16(pair.upper);
  const float joined = Joined(pair);
  if (std::isnan(upper)) {
    ASSERT_TRUE(std::isnan(joined)) << std::hex << pair.upper << ", " << pair.lower;
    return;
  }
  ASSERT_FALSE(std::isnan(joined)) << std::hex << pair.upper << ", " << pair.lower;
  ASSERT_EQ(std::signbit(joined), std::signbit(upper)) << std::hex << pair.upper;
  const SplitFloat again = Split(joined);
  const bool belongs = again.upper == pair.upper && again.lower == pair.lower;
  const bool negative = (pair.lower & 0x8000) != 0;
  if (std::isinf(upper)) {
    // The values beyond the last bfloat16 that round to infinity are those with a negative half.
    ASSERT_EQ(belongs, negative || pair.lower == 0) << std::hex << pair.lower;
    ASSERT_GE(std::abs(joined), 0x1.fep127f + 0x1p119f) << std::hex << pair.lower;
  } else {
    ASSERT_EQ(belongs, upper != 0 || !negative) << std::hex << pair.upper << ", " << pair.lower;
    // Subnormals have the unit of the smallest normal numbers.
    const double unit = std::ldexp(1.0, std::max(std::ilogb(upper), -126) - 7);
    ASSERT_LE(std::abs(double{joined} - double{upper}), unit / 2) << std::hex << pair.upper;
  }
  if (!belongs) {
    ASSERT_EQ(joined, upper);
  }
}

TEST(SplitMasterTest, ARemainderOfAnotherValueMovesTheParameterByHalfAUnitAtMost) {
  const bool all = tidegate::testing::TestsAll();
  const std::uint32_t stride_of_ends = tidegate::testing::kIsSlowBuild && !all ? 61 : 1;
  for (std::uint32_t upper = 0; upper < 65536; ++upper) {
    // Zeros, the ends of subnormals, exponents and finite numbers, infinities and NaNs.
    const bool end = (upper & 0x7f) == 0 || (upper & 0x7f) == 0x7f;
    const std::uint32_t stride = end ? stride_of_ends : all ? 31 : 4093;
    for (std::uint32_t lower = 0; lower < 65536; lower += stride) {
      ExpectJoinedNearUpper({static_cast<std::uint16_t>(upper), static_cast<std::uint16_t>(lower)});
      if (HasFatalFailure()) return;
    }
    for (std::uint16_t lower : {1, 0x7fff, 0x8000, 0x8001, 0xffff}) {
      ExpectJoinedNearUpper({static_cast<std::uint16_t>(upper), lower});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(StochasticRoundingTest, IsRightOnAverage) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20; ++i) {
    const float value = std::ldexp(1 + static_cast<float>(random() % 65536) / 65536, i - 10) *
                        (i % 2 == 0 ? 1.0f : -1.0f);
    double sum = 0;
    constexpr int kDraws = 1 << 16;
    const RandomKey key = KeyOfBlock(random(), 0);
    for (std::uint32_t draw = 0; draw < kDraws; ++draw)
      sum += FloatFromBFloat16(StochasticBFloat16(value, RandomWord(key, draw)));
    // Of the mean of 65,536 draws, one of which is off by 2^-7 at most: six times its deviation.
    EXPECT_NEAR(sum / kDraws, value, std::abs(value) * 6 * 0x1p-8 / std::sqrt(kDraws));
  }
}

TEST(StochasticRoundingTest, KeepsWhatNeedsNoRounding) {
  for (std::uint32_t word : {0u, 0xffffffffu}) {
    EXPECT_EQ(StochasticBFloat16(1.5f, word), 0x3fc0);
    EXPECT_EQ(StochasticBFloat16(-0.0f, word), 0x8000);
    EXPECT_EQ(StochasticBFloat16(kInfinity, word), 0x7f80);
    EXPECT_TRUE(std::isnan(FloatFromBFloat16(StochasticBFloat16(kNan, word))));
  }
}

TEST(RandomBitsTest, AreUniform) {
  // The upper 16 bits, those that rounding takes, in 256 classes: chi squared has 255 degrees of
  // freedom, mean 255 and deviation 22.6.
  for (std::uint64_t seed : {0, 1, 2, 3}) {
    std::array<double, 256> classes = {};
    constexpr int kBlocks = 64;
    for (std::uint64_t block = 0; block < kBlocks; ++block) {
      const RandomKey key = KeyOfBlock(seed, block);
      for (std::uint32_t i = 0; i < kBlock; ++i) ++classes[RandomWord(key, i) >> 24];
    }
    const double expected = kBlocks * kBlock / 256.0;
    double chi_squared = 0;
    for (double count : classes) chi_squared += (count - expected) * (count - expected) / expected;
    EXPECT_GT(chi_squared, 255 - 6 * 22.6);
    EXPECT_LT(chi_squared, 255 + 6 * 22.6);
  }
}

/// The correlation of the upper 16 bits of two sequences of words.
double Correlation(const std::vector<double>& a, const std::vector<double>& b) {
  double product = 0;
  double squares_a = 0;
  double squares_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    product += a[i] * b[i];
    squares_a += a[i] * a[i];
    squares_b += b[i] * b[i];
  }
  return product / std::sqrt(squares_a * squares_b);
}

TEST(RandomBitsTest, NeighboursBlocksAndSeedsAreUnrelated) {
  const auto draw = [](std::uint64_t seed, std::uint64_t block, std::uint32_t shift) {
    std::vector<double> words;
    const RandomKey key = KeyOfBlock(seed, block);
    for (std::uint32_t i = 0; i < kBlock - 64; ++i)
      words.push_back(static_cast<double>(RandomWord(key, i + shift) >> 16) - 32767.5);
    return words;
  };
  const double bound = 5 / std::sqrt(kBlock);
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const std::vector<double> words = draw(seed, seed, 0);
    for (std::uint32_t shift : {1, 2, 4, 8, 16, 17, 64})
      EXPECT_LT(std::abs(Correlation(words, draw(seed, seed, shift))), bound) << shift;
    EXPECT_LT(std::abs(Correlation(words, draw(seed, seed + 1, 0))), bound);
    EXPECT_LT(std::abs(Correlation(words, draw(seed + 1, seed, 0))), bound);
  }
}

template <typename Code>
constexpr std::uint32_t kCodes = std::is_same_v<Code, MomentumCode> ? 128 : 256;
template <typename Code>
constexpr float kLeast = std::is_same_v<Code, MomentumCode> ? 0x1p-24f : 0x1.4p-32f;

template <typename Code>
std::vector<float> Table() {
  std::vector<float> values;
  for (std::uint32_t code = 0; code < kCodes<Code>; ++code) values.push_back(Code::Decode(code));
  return values;
}

template <typename Code>
void ExpectTheNearestCode() {
  const std::vector<float> table = Table<Code>();
  EXPECT_EQ(table[0], 0);
  EXPECT_EQ(table[1], kLeast<Code>);
  EXPECT_EQ(table.back(), 1);
  EXPECT_TRUE(std::is_sorted(table.begin(), table.end()));
  for (std::uint32_t code = 1; code < table.size(); ++code)
    ASSERT_EQ(Code::Encode(table[code]), code);
  std::mt19937_64 random(kCodes<Code>);
  std::uniform_real_distribution<float> exponent(-28, 0);
  for (int i = 0; i < 100000; ++i) {
    const float y = std::exp2(exponent(random));
    const std::uint32_t code = Code::Encode(y);
    ASSERT_LT(code, table.size());
    const float error = std::abs(table[code] - y);
    // Zero begins 1/32 of the least code lower than half way.
    const float slack = code <= 1 ? table[1] / 16 : y * 1e-6f;
    if (code > 0) {
      ASSERT_LE(error, std::abs(table[code - 1] - y) + slack) << y;
    }
    if (code + 1 < table.size()) {
      ASSERT_LE(error, std::abs(table[code + 1] - y) + slack) << y;
    }
  }
}

TEST(Block8Test, TakesTheNearestCode) {
  ExpectTheNearestCode<MomentumCode>();
  ExpectTheNearestCode<SquaresCode>();
}

template <typename Code>
void ExpectStochasticCodes() {
  const std::vector<float> table = Table<Code>();
  std::mt19937_64 random(kCodes<Code>);
  std::uniform_real_distribution<float> exponent(std::log2(kLeast<Code>), 0);
  constexpr int kDraws = 1 << 16;
  for (int i = 0; i < 100; ++i) {
    const float y = std::exp2(exponent(random));
    const RandomKey key = KeyOfBlock(random(), 0);
    const auto above = std::upper_bound(table.begin(), table.end(), y) - table.begin();
    const double step = table[above] - table[above - 1];
    double sum = 0;
    for (std::uint32_t draw = 0; draw < kDraws; ++draw) {
      const std::uint32_t word = RandomWord(key, draw);
      const std::uint32_t code = Code::Encode(y, word);
      ASSERT_TRUE(code == above || code == above - 1) << y;
      sum += table[code];
    }
    // Of the mean of draws of two values, `step` apart: five times its deviation, 0.5 at most.
    EXPECT_NEAR(sum / kDraws, y, step * 2.5 / std::sqrt(kDraws)) << y;
  }
}

TEST(Block8Test, IsRightOnAverage) {
  ExpectStochasticCodes<MomentumCode>();
  ExpectStochasticCodes<SquaresCode>();
}

TEST(Block8Test, AStepKeepsTheGreatestMagnitudeWhateverItDraws) {
  std::mt19937_64 random(9);
  for (int i = 0; i < 100000; ++i) {
    // Any normal or subnormal number.
    const auto bits = static_cast<std::uint32_t>(random() % 0x7f7fffff + 1);
    const auto greatest = std::bit_cast<float>(bits);
    const Block8Factors factors = Block8FactorsOf(Block8Scale(bits));
    ASSERT_EQ(EncodeSigned8(-greatest, factors), 0xff) << greatest;
    ASSERT_EQ(EncodeUnsigned8(greatest, factors), 0xff) << greatest;
    for (std::uint32_t word : {0u, 0xffffffffu}) {
      ASSERT_EQ(EncodeSigned8(-greatest, factors, word), 0xff) << greatest;
      ASSERT_EQ(EncodeUnsigned8(greatest, factors, word), 0xff) << greatest;
    }
  }
}

TEST(Block8Test, AStepKeepsZerosAndWhatIsAboveZero) {
  const Block8Factors factors = Block8FactorsOf(1);
  for (std::uint32_t word : {0u, 0xffffffffu}) {
    EXPECT_EQ(EncodeSigned8(0.0f, factors, word), 0);
    EXPECT_EQ(EncodeSigned8(-0.0f, factors, word), 0x80);
    EXPECT_EQ(EncodeUnsigned8(0.0f, factors, word), 0);
    EXPECT_EQ(EncodeUnsigned8(1e-45f, factors, word), 1);
    EXPECT_EQ(EncodeUnsigned8(2e-10f, factors, word), 1);
  }
}

TEST(Block8Test, TheGreatestMagnitudeIsKeptExactly) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (float scale : {1.0f, 1e-20f, 0x1p-140f, 0x1p120f}) {
    for (bool squares : {false, true}) {
      std::vector<float> values(kScaleBlock);
      for (float& value : values) value = scale * normal(random);
      if (squares)
        for (float& value : values) value = std::abs(value);
      std::vector<std::uint8_t> codes(kScaleBlock);
      const float found = EncodeBlock8(values.data(), values.size(), squares, codes.data());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float back =
            squares ? DecodeUnsigned8(codes[i], found) : DecodeSigned8(codes[i], found);
        const bool greatest = std::abs(values[i]) == found;
        EXPECT_NEAR(back, values[i], greatest ? 0 : squares ? values[i] / 16 : found / 125);
      }
    }
  }
}

TEST(Block8Test, SquaresAboveZeroStayAboveZero) {
  const float values[] = {1.0f, 1e-30f, 0.0f, 1e-45f};
  std::uint8_t codes[4];
  EncodeBlock8(values, 4, true, codes);
  EXPECT_EQ(codes[0], 255);
  EXPECT_EQ(codes[1], 1);
  EXPECT_EQ(codes[2], 0);
  EXPECT_EQ(codes[3], 1);
}

TEST(Block8Test, ABlockWithANanOrAnInfinityIsNan) {
  for (float special : {kNan, kInfinity, -kInfinity}) {
    const float values[] = {1.0f, special, 2.0f};
    std::uint8_t codes[3];
    const float scale = EncodeBlock8(values, 3, false, codes);
    for (std::uint8_t code : codes) EXPECT_TRUE(std::isnan(DecodeSigned8(code, scale)));
  }
}

TEST(Block8Test, ABlockOfZerosStaysZero) {
  const float values[] = {0.0f, -0.0f};
  std::uint8_t codes[2];
  const float scale = EncodeBlock8(values, 2, false, codes);
  EXPECT_EQ(scale, 0);
  for (std::uint8_t code : codes) EXPECT_EQ(DecodeSigned8(code, scale), 0);
}

}  // namespace
}  // namespace tidegate::offload::testing
