#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/kernels/dtype.h"

// The specification of the reduction kernels, written for reading and not for speed: one element at
// a time, 16-bit floats by arithmetic on doubles instead of on bits.

namespace tidegate::testing {

/// A binary floating-point format of 16 bits.
struct SmallFormat {
  int exponent_bits;
  int fraction_bits;
};
inline constexpr SmallFormat kHalf = {5, 10};
inline constexpr SmallFormat kBrain = {8, 7};

/// The value of `bits`; exact.
double DecodeSmall(SmallFormat format, std::uint16_t bits);
/// `value` rounded to nearest even, overflow to infinity; any NaN gives a quiet NaN.
std::uint16_t EncodeSmall(SmallFormat format, double value);

/// What a kernel for (dtype, op) must write for these sources of `elements` elements each, or an
/// empty vector where the pair has no meaning.
std::vector<std::byte> ReferenceReduce(DataType dtype, ReduceOp op,
                                       std::span<const std::vector<std::byte>> sources,
                                       std::size_t elements, std::span<const double> factors);

/// Whether element `index` of `buffer` is a NaN; false for types without.
bool IsNan(DataType dtype, const std::byte* buffer, std::size_t index);

}  // namespace tidegate::testing
