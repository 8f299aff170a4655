#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "offload/optim/random_bits.h"
#include "offload/optim/update.h"

// States in 8 bits: the specification of the vectors' codec.
//
// A block of kScaleBlock elements has one scale, its greatest magnitude, and a code an element. The
// greatest element is kept exactly. Unlike tables, the formulas need no gather.
//
// A step rounds stochastically, up with a probability of the way to the upper of two neighbours;
// values are linear in codes between them, so that both are right on average. A step takes 0.1% off
// exp_avg_sq: to nearest most codes would never change, and it would follow the scale of its block
// instead of its gradients. exp_avg, of which a step takes a tenth, would stand still only where
// scales hardly move and gradients are no noise, but then over an exp_avg_sq that decays, and
// parameters without gradients would run off. What is imported goes to nearest, for it must come
// back as it was.

namespace tidegate::offload {

/// Magnitudes of exp_avg, in [0, 1]: 7 bits, c with 2^k <= c < 2^(k+1), which stand for
///
///     (15 (c + 1) - 14 * 2^k) * 2^(3k - 28),    and code 0 for 0:
///
/// 2^k equal steps over each interval (16^-(n+1), 16^-n], n = 6 - k, down to 2^-24. Near 1 the
/// codes are dense, and each further factor of 16 below it has half as many.
struct MomentumCode {
  static float Decode(std::uint32_t code) {
    if (code == 0) return 0;
    const int k = std::bit_width(code) - 1;
    const int steps = 15 * (static_cast<int>(code) + 1) - 14 * (1 << k);
    return std::ldexp(static_cast<float>(steps), 3 * k - 28);  // Exact.
  }

  /// The nearest code. REQUIRES: 0 <= y <= 1 + 2^-22.
  static std::uint32_t Encode(float y) {
    return static_cast<std::uint32_t>(static_cast<int>(std::nearbyint(Position(y, -1))));
  }

  /// One of the two codes around `y`, by 16 bits of a random word.
  static std::uint32_t Encode(float y, std::uint32_t word) {
    const auto dither = std::bit_cast<float>((word & 0x7fff80) | 0x3f800000);  // In [1, 2).
    return static_cast<std::uint32_t>(static_cast<int>(Position(y, -2) + dither));
  }

  /// Where `y` lies among the codes, plus 1 and `offset`; 1/15 too low for 0.
  static float Position(float y, float offset) {
    // The exponent, in steps of four, of the interval: bits of 2^(-4n - 3).
    const auto bits = std::bit_cast<std::uint32_t>(y);
    const std::uint32_t interval = std::max((bits + 0x800000) & 0x7e000000, kLeast);
    const auto within = std::bit_cast<float>(bits - interval + kGreatest);  // In (1/16, 1].
    const auto power = std::bit_cast<float>((interval >> 2) + kPower);      // 2^k
    return std::fma(power, std::fma(within, kSlope, kFirst), offset);
  }

  static constexpr std::uint32_t kGreatest = 124u << 23;  ///< n = 0.
  static constexpr std::uint32_t kLeast = 100u << 23;     ///< n = 6.
  static constexpr std::uint32_t kPower = 102u << 23;
  static constexpr float kSlope = 16.0f / 15;
  static constexpr float kFirst = 14.0f / 15;
};

/// exp_avg_sq, in [0, 1]: a float of 5 bits of exponent and 3 of mantissa, 255 for 1, down to 1.25
/// * 2^-32, and 0 for 0. Neighbours are 6% to 12% of the value apart everywhere. What stochastic
/// rounding does to a state that keeps 99.9% of itself adds up, here to a deviation of a quarter of
/// the value. With the steps of MomentumCode far below the scale it would be as much as the value,
/// which would at times be a fiftieth of what it should be, and the update seven times too large.
struct SquaresCode {
  static float Decode(std::uint32_t code) {
    return code == 0 ? 0 : std::bit_cast<float>((code + kZero) << kDropped);
  }

  /// The nearest code. REQUIRES: 0 <= y <= 1 + 2^-22.
  static std::uint32_t Encode(float y) { return Rounded(y, 1u << (kDropped - 1)); }

  /// One of the two codes around `y`, by the upper 20 bits of a random word.
  static std::uint32_t Encode(float y, std::uint32_t word) {
    return Rounded(y, word >> (32 - kDropped));
  }

  /// More than zero never becomes zero, which would divide the next step by eps.
  static std::uint32_t Rounded(float y, std::uint32_t added) {
    const std::uint32_t code = (std::bit_cast<std::uint32_t>(y) + added) >> kDropped;
    return std::clamp(code, kZero + 1, kZero + 255) - kZero;
  }

  static constexpr int kDropped = 20;                 ///< Bits of a float32 that are no part of it.
  static constexpr std::uint32_t kZero = 1016 - 255;  ///< What 1 has above them is 1016.
};

/// What a block's values are multiplied with, one after the other, to lie in [0, 1].
struct Block8Factors {
  float first;  ///< 1, but for scales so small that their reciprocal would be infinite.
  float second;
};

/// The scale of a block whose greatest magnitude has these bits: NaN where a value is NaN or
/// infinite, which makes the whole block NaN.
inline float Block8Scale(std::uint32_t greatest) {
  if (greatest >= 0x7f800000) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(greatest);
}

/// REQUIRES: `scale` comes from Block8Scale().
inline Block8Factors Block8FactorsOf(float scale) {
  if (!(scale > 0)) return {1, 0};  // Zero and NaN: all codes are 0.
  const float first = scale < 0x1p-64f ? 0x1p96f : 1.0f;
  // Rounded up where the greatest element would else come out below 1, and its code with it.
  const float second = 1 / (scale * first);
  const bool low = scale * first * second < 1;
  return {first, std::bit_cast<float>(std::bit_cast<std::uint32_t>(second) + (low ? 1 : 0))};
}

/// exp_avg, to nearest, or by a random word.
template <typename... Word>
std::uint8_t EncodeSigned8(float value, Block8Factors factors, Word... word) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffff);
  if (factors.second == 0) return 0;
  const float y = magnitude * factors.first * factors.second;
  return static_cast<std::uint8_t>(MomentumCode::Encode(y, word...) | (bits >> 31 << 7));
}

/// exp_avg_sq, to nearest, or by a random word. The same one serves both states: the bits that they
/// share are none of the leading ones of both.
template <typename... Word>
std::uint8_t EncodeUnsigned8(float value, Block8Factors factors, Word... word) {
  if (factors.second == 0 || !(value > 0)) return 0;
  const float y = value * factors.first * factors.second;
  return static_cast<std::uint8_t>(SquaresCode::Encode(y, word...));
}

inline float DecodeSigned8(std::uint8_t code, float scale) {
  const float magnitude = MomentumCode::Decode(code & 0x7f);
  return ((code & 0x80) != 0 ? -magnitude : magnitude) * scale;
}

inline float DecodeUnsigned8(std::uint8_t code, float scale) {
  return SquaresCode::Decode(code) * scale;
}

/// The scale of up to kScaleBlock values.
inline float Block8ScaleOf(const float* values, std::size_t count) {
  std::uint32_t greatest = 0;
  for (std::size_t i = 0; i < count; ++i)
    greatest = std::max(greatest, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffff);
  return Block8Scale(greatest);
}

/// Encodes up to kScaleBlock values to nearest; returns their scale.
inline float EncodeBlock8(const float* values, std::size_t count, bool squares,
                          std::uint8_t* codes) {
  const float scale = Block8ScaleOf(values, count);
  const Block8Factors factors = Block8FactorsOf(scale);
  for (std::size_t i = 0; i < count; ++i)
    codes[i] = squares ? EncodeUnsigned8(values[i], factors) : EncodeSigned8(values[i], factors);
  return scale;
}

/// The same, stochastically. The first value is element `index` of the block of kBlock of `key`.
inline float EncodeBlock8(const float* values, std::size_t count, bool squares, RandomKey key,
                          std::size_t index, std::uint8_t* codes) {
  const float scale = Block8ScaleOf(values, count);
  const Block8Factors factors = Block8FactorsOf(scale);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t word = RandomWord(key, static_cast<std::uint32_t>(index + i));
    codes[i] = squares ? EncodeUnsigned8(values[i], factors, word)
                       : EncodeSigned8(values[i], factors, word);
  }
  return scale;
}

}  // namespace tidegate::offload
