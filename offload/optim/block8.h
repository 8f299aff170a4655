#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

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
    const int exponent = static_cast<int>(std::bit_cast<std::uint32_t>(y) >> 23);  // 127: of 1.
    const int n =
        std::min((126 - exponent) >> 2, kBits - 1);  // -1 of 1, which encodes rightly, too.
    const float power = std::ldexp(1.0f, kBits - 1 - n);
    const float scaled = y * std::ldexp(1.0f, 3 * n + kBits - 1);
    const float code = std::fma(scaled, kSlope, std::fma(power, kFirst, -1.0f));
    return static_cast<std::uint32_t>(static_cast<int>(std::nearbyint(code)));
  }

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
  return {first, 1 / (scale * first)};
}

/// exp_avg.
inline std::uint8_t EncodeSigned8(float value, Block8Factors factors) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffff);
  if (factors.second == 0) return 0;
  const std::uint32_t code = Block8Code<7>::Encode(magnitude * factors.first * factors.second);
  return static_cast<std::uint8_t>(code | (bits >> 31 << 7));
}

/// exp_avg_sq. More than zero never becomes zero, which would divide the next step by eps.
inline std::uint8_t EncodeUnsigned8(float value, Block8Factors factors) {
  if (factors.second == 0 || !(value > 0)) return 0;
  const std::uint32_t code = Block8Code<8>::Encode(value * factors.first * factors.second);
  return static_cast<std::uint8_t>(std::max(code, 1u));
}

inline float DecodeSigned8(std::uint8_t code, float scale) {
  const float magnitude = Block8Code<7>::Decode(code & 0x7f);
  return ((code & 0x80) != 0 ? -magnitude : magnitude) * scale;
}

inline float DecodeUnsigned8(std::uint8_t code, float scale) {
  return Block8Code<8>::Decode(code) * scale;
}

/// Encodes up to kScaleBlock values; returns their scale.
inline float EncodeBlock8(const float* values, std::size_t count, bool squares,
                          std::uint8_t* codes) {
  std::uint32_t greatest = 0;
  for (std::size_t i = 0; i < count; ++i)
    greatest = std::max(greatest, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffff);
  const float scale = Block8Scale(greatest);
  const Block8Factors factors = Block8FactorsOf(scale);
  for (std::size_t i = 0; i < count; ++i)
    codes[i] = squares ? EncodeUnsigned8(values[i], factors) : EncodeSigned8(values[i], factors);
  return scale;
}

}  // namespace tidegate::offload
