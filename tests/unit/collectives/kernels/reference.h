#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collectives/kernels/dtype.h"

// The specification of the reduction kernels, written for reading and not for speed: one element at
// a time, small floats by arithmetic on doubles instead of on bits.

namespace tidegate::testing {

/// What the greatest codes of a floating-point format stand for.
enum class Specials {
  kIeee,          ///< Exponent of ones: infinity and NaNs.
  kNanLast,       ///< "fn": no infinity; the greatest code of each sign is NaN.
  kNanMinusZero,  ///< "fnuz": no infinity, no negative zero; its code is the only NaN.
  kExponentOnly,  ///< A power of two, no sign, no zero; the greatest code is NaN.
};

/// A binary floating-point format of at most 16 bits.
struct SmallFormat {
  int exponent_bits;
  int fraction_bits;
  int bias;
  Specials specials = Specials::kIeee;
};
inline constexpr SmallFormat kHalf = {5, 10, 15};
inline constexpr SmallFormat kBrain = {8, 7, 127};
inline constexpr SmallFormat kE4M3FN = {4, 3, 7, Specials::kNanLast};
inline constexpr SmallFormat kE5M2 = {5, 2, 15};
inline constexpr SmallFormat kE4M3FNUZ = {4, 3, 8, Specials::kNanMinusZero};
inline constexpr SmallFormat kE5M2FNUZ = {5, 2, 16, Specials::kNanMinusZero};
inline constexpr SmallFormat kE8M0FNU = {8, 0, 127, Specials::kExponentOnly};
/// The format of a dtype whose elements are decoded for arithmetic; nothing for others.
std::optional<SmallFormat> FormatOf(DataType dtype);
/// The dtype of the real and imaginary parts of a complex dtype; any other dtype itself.
DataType PartOf(DataType dtype);

/// The value of `bits`; exact.
double DecodeSmall(SmallFormat format, std::uint16_t bits);
/// `value` rounded to nearest even. Too large becomes infinity, the greatest number in kNanLast
/// and NaN in the others; any NaN gives a quiet NaN. kExponentOnly takes the magnitude as torch
/// does: midway between two powers the upper one, from more than 2^-127 to 2^-126 the upper one,
/// below that 2^-127.
std::uint16_t EncodeSmall(SmallFormat format, double value);

/// What a kernel for (dtype, op) must write for these sources of `elements` elements each, or an
/// empty vector where the pair has no meaning.
std::vector<std::byte> ReferenceReduce(DataType dtype, ReduceOp op,
                                       std::span<const std::vector<std::byte>> sources,
                                       std::size_t elements, std::span<const double> factors);

/// Whether ReferenceReduce() has a result for the pair.
bool HasMeaning(DataType dtype, ReduceOp op);

/// Whether element `index` of `buffer` is a NaN; false for types without. Not for complex dtypes.
bool IsNan(DataType dtype, const std::byte* buffer, std::size_t index);

}  // namespace tidegate::testing
