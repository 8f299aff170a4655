#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "offload/optim/layout.h"

// Elements as float32, one at a time: the specification of the vectors' conversions.

namespace tidegate::offload {

inline float FloatFromBFloat16(std::uint16_t stored) {
  return std::bit_cast<float>(std::uint32_t{stored} << 16);
}

/// To nearest, ties to even; a NaN stays one.
inline std::uint16_t BFloat16FromFloat(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return static_cast<std::uint16_t>((bits | 0x400000) >> 16);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// Up with a probability of the part that is cut off, by the upper 16 bits of a random word; a NaN
/// stays one.
inline std::uint16_t StochasticBFloat16(float value, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return static_cast<std::uint16_t>((bits | 0x400000) >> 16);
  return static_cast<std::uint16_t>((bits + (random >> 16)) >> 16);
}

inline float FloatFromFloat16(std::uint16_t stored) {
  const std::uint32_t sign = std::uint32_t{stored & 0x8000u} << 16;
  const std::uint32_t magnitude = stored & 0x7fff;
  if (magnitude < 0x400) {  // Subnormal: a multiple of 2^-24.
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  std::uint32_t bits = magnitude << 13;
  if (magnitude < 0x7c00)
    bits += (127 - 15) << 23;
  else
    bits |= magnitude == 0x7c00 ? 0x7f800000 : 0x7fc00000;
  return std::bit_cast<float>(bits | sign);
}

/// To nearest, ties to even, too large to infinity; a NaN stays one.
inline std::uint16_t Float16FromFloat(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  std::uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  } else if (magnitude >= 0x477ff000) {  // 65520, half way from the greatest number to 2^16
    half = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // 2^-14, the smallest normal number
    const std::uint32_t rebased = magnitude - ((127 - 15) << 23);
    half = (rebased + 0xfff + ((rebased >> 13) & 1)) >> 13;
  } else {
    // One unit in the last place of 0.5f is the smallest half, so that the addition rounds to it.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  }
  return static_cast<std::uint16_t>(half | sign);
}

/// An element type in memory, by index.
template <ElementType kType>
struct ScalarElement {
  using Storage = std::conditional_t<kType == ElementType::kFloat32, float, std::uint16_t>;

  static float Load(const void* from, std::size_t index) {
    const Storage stored = static_cast<const Storage*>(from)[index];
    if constexpr (kType == ElementType::kFloat32) return stored;
    if constexpr (kType == ElementType::kBFloat16) return FloatFromBFloat16(stored);
    if constexpr (kType == ElementType::kFloat16) return FloatFromFloat16(stored);
  }
  static void Store(void* to, std::size_t index, float value) {
    Storage& stored = static_cast<Storage*>(to)[index];
    if constexpr (kType == ElementType::kFloat32) stored = value;
    if constexpr (kType == ElementType::kBFloat16) stored = BFloat16FromFloat(value);
    if constexpr (kType == ElementType::kFloat16) stored = Float16FromFloat(value);
  }
};

}  // namespace tidegate::offload
