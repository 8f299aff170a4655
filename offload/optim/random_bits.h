#pragma once

#include <cstdint>

// The random bits of stochastic rounding: a function of (seed, step, element) and of nothing else,
// so that they depend neither on threads nor on cuts, and a resumed run draws what it would have
// drawn.

namespace tidegate::offload {

/// Of one block of kBlock elements at one step.
struct RandomKey {
  std::uint32_t low;
  std::uint32_t high;
};

/// The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014, with the constants of Stafford's variant 13): unrelated outputs for related
/// inputs.
inline std::uint64_t Mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

/// `seed` is Coefficients::seed, in which the step is mixed already.
inline RandomKey KeyOfBlock(std::uint64_t seed, std::uint64_t block) {
  const std::uint64_t mixed = Mixed(seed + (block + 1) * 0x9e3779b97f4a7c15);
  return {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)};
}

/// The golden ratio: what the Weyl sequence moves on by.
inline constexpr std::uint32_t kWeyl = 0x9e3779b9;

/// 32 bits for element `index` of a block: the finaliser of MurmurHash3 (Appleby) of a Weyl
/// sequence, with one half of the key at its beginning and the other between its multiplications. A
/// dozen operations on 32-bit lanes, where ten rounds of Philox would take longer than the step.
inline std::uint32_t RandomWord(RandomKey key, std::uint32_t index) {
  std::uint32_t word = key.low + index * kWeyl;
  word = (word ^ (word >> 16)) * 0x85ebca6b;
  word = ((word ^ (word >> 13)) + key.high) * 0xc2b2ae35;
  return word ^ (word >> 16);
}

}  // namespace tidegate::offload
