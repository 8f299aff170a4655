#pragma once

#include <bit>
#include <cstdint>

// A float32 in a bfloat16 and 16 bits more.
//
// The upper half is the bfloat16 nearest to the value and the lower half is what is left, as a
// signed number of the float32's units in the last place: value = (upper << 16) + lower, as
// integers. There are 2^16 lower halves, while 2^16 + 1 values round to an even bfloat16 if ties go
// to even, so that no encoding of 32 bits has both that and every value. Here every value but the
// payload of a NaN comes back as it was, and ties (one value in 65,536) go away from zero, where
// torch's cast takes half of them to the other neighbour, which is as near.
//
// Others may write to the parameter and leave the lower half, which then belongs to another value.
// Nearly every pair is that of some value, half a unit in the last place of the upper half away
// from it at most: nothing is lost but the lower half's 16 bits. Those pairs that are not would
// wrap around into a NaN: zeros with a negative lower half, infinities with a positive one. They
// join to their upper half.

namespace tidegate::offload {

struct SplitFloat {
  std::uint16_t upper;  ///< A bfloat16.
  std::uint16_t lower;
};

inline SplitFloat Split(float value) {
  // Rounding could carry a NaN into infinity or into the sign.
  const std::uint32_t bits = value != value ? 0x7fc00000 : std::bit_cast<std::uint32_t>(value);
  return {static_cast<std::uint16_t>((bits + 0x8000) >> 16), static_cast<std::uint16_t>(bits)};
}

/// What was split; of other pairs a value that is NaN only where `upper` is, and finite wherever
/// `upper` is.
inline float Joined(SplitFloat split) {
  const auto lower = static_cast<std::int16_t>(split.lower);
  const std::uint32_t upper = std::uint32_t{split.upper} << 16;
  const auto sum = std::bit_cast<float>(upper + static_cast<std::uint32_t>(std::int32_t{lower}));
  return sum != sum ? std::bit_cast<float>(upper) : sum;
}

}  // namespace tidegate::offload
