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
// A block of kScaleBlock elements has one scale, its greatest magnitude, and a code an element. A
// code of kBits magnitude bits, c with 2^k <= c < 2^(k+1), stands for
//
//     (15 (c + 1) - 14 * 2^k) * 2^(3k - 4 kBits)    times the scale, and code 0 for 0:
//
// 2^k equal steps over each interval (16^-(n+1), 16^-n], n = kBits - 1 - k. Near the scale the
// codes are dense, and each further factor of 16 below it has half as many: exp_avg, a sign and 7
// bits, reaches down to 2^-24 of the scale and exp_avg_sq, 8 bits, to 2^-28. The greatest element
// is kept exactly. Unlike a table, the formula needs no gather: a dozen operations a vector either
// way.
//
// A step rounds stochastically, up with a probability of the way to the upper of two neighbours;
// values are linear in codes between them, so that both are right on average. Codes of exp_avg_sq
// are 0.7% to 12% of the value apart in the first interval, those of exp_avg 1.5% to 23%, and twice
// as far in each further one, while a step takes 0.1% off the one and a tenth off the other. To
// nearest most codes of exp_avg_sq would never change: it would follow the scale of its block
// instead of its gradients. exp_avg would stand still only where scales hardly move and gradients
// are no noise, but then over an exp_avg_sq that decays, and parameters without gradients would run
// off. What is imported goes to nearest, for it must come back as it was.

namespace tidegate::offload {

template <int kBits>
struct Block8Code {
  static float Decode(std::uint32_t code) {
    if (code == 0) return 0;
    const int k = std::bit_width(code) - 1;
    const int steps = 15 * (static_cast<int>(code) + 1) - 14 * (1 << k);
    return std::ldexp(static_cast<float>(steps), 3 * k - 4 * kBits);  // Exact.
  }

  /// The nearest code. REQUIRES: 0 <= y <= 1 + 2^-22.
  static std::uint32_t Encode(float y) {
    return static_cast<std::uint32_t>(static_cast<int>(std::nearbyint(Position(y, -1))));
  }

  /// One of the two codes around `y`, the upper one with a probability of how near it is. `dither`
  /// is random in [1, 2).
  static std::uint32_t Encode(float y, float dither) {
    const auto code = static_cast<int>(Position(y, -2) + dither);
    return static_cast<std::uint32_t>(std::min(code, (1 << kBits) - 1));
  }

  /// Where `y` lies among the codes, plus `offset`; 1/15 too low for 0.
  static float Position(float y, float offset) {
    // The exponent, in steps of four, of the interval: bits of 2^(-4n - 3).
    const auto bits = std::bit_cast<std::uint32_t>(y);
    const std::uint32_t interval = std::max((bits + 0x800000) & 0x7e000000, kLeast);
    const auto within = std::bit_cast<float>(bits - interval + kGreatest);  // In (1/16, 1].
    const auto power = std::bit_cast<float>((interval >> 2) + kPower);      // 2^k
    return std::fma(power, std::fma(within, kSlope, kFirst), offset);
  }

  static constexpr std::uint32_t kGreatest = 124u << 23;  ///< n = 0.
  static constexpr std::uint32_t kLeast = (128u - 4 * kBits) << 23;
  static constexpr std::uint32_t kPower = (kBits + 95u) << 23;
  static constexpr float kSlope = 16.0f / 15;
  static constexpr float kFirst = 14.0f / 15;
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

/// What RandomWord() makes of the codes of an element in [1, 2): 16 bits for exp_avg, and for
/// exp_avg_sq, which moves by a hundredth of a code, 23. They share some, but no leading ones.
inline float SignedDither(std::uint32_t word) {
  return std::bit_cast<float>((word & 0x7fff80) | 0x3f800000);
}
inline float UnsignedDither(std::uint32_t word) {
  return std::bit_cast<float>((word >> 9) | 0x3f800000);
}

/// exp_avg. `dither`: nothing to round to nearest, else SignedDither().
template <typename... Dither>
std::uint8_t EncodeSigned8(float value, Block8Factors factors, Dither... dither) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffff);
  if (factors.second == 0) return 0;
  const float y = magnitude * factors.first * factors.second;
  const std::uint32_t code = Block8Code<7>::Encode(y, dither...);
  return static_cast<std::uint8_t>(code | (bits >> 31 << 7));
}

/// exp_avg_sq. More than zero never becomes zero, which would divide the next step by eps.
/// `dither`: nothing, or UnsignedDither().
template <typename... Dither>
std::uint8_t EncodeUnsigned8(float value, Block8Factors factors, Dither... dither) {
  if (factors.second == 0 || !(value > 0)) return 0;
  const float y = value * factors.first * factors.second;
  const std::uint32_t code = Block8Code<8>::Encode(y, dither...);
  return static_cast<std::uint8_t>(std::max(code, 1u));
}

inline float DecodeSigned8(std::uint8_t code, float scale) {
  const float magnitude = Block8Code<7>::Decode(code & 0x7f);
  return ((code & 0x80) != 0 ? -magnitude : magnitude) * scale;
}

inline float DecodeUnsigned8(std::uint8_t code, float scale) {
  return Block8Code<8>::Decode(code) * scale;
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
    codes[i] = squares ? EncodeUnsigned8(values[i], factors, UnsignedDither(word))
                       : EncodeSigned8(values[i], factors, SignedDither(word));
  }
  return scale;
}

}  // namespace tidegate::offload
