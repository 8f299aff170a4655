// Codecs of the 8-bit floats. Part of reduce_inl.h, whose first comment says why this includes no
// standard header.
//
// 8 bits in memory, float32 in registers: a vector of memory seen as 32-bit lanes holds four
// elements in each, which part and meet by shifts alone. The conversions are arithmetic on bits
// rather than look-ups in tables, because only AVX2 and later have a gather, and a slow one.
#pragma once

#include "collectives/kernels/vector_inl.h"

namespace tidegate::TIDEGATE_REDUCE_NAMESPACE {
namespace {

/// `Format` converts between one element in the low 8 bits of a lane and a float32.
template <typename Format>
struct Float8 {
  using Storage = std::uint8_t;
  using Accumulator = float;
  using Stored = Vector<std::uint32_t, kVectorBytes / sizeof(std::uint32_t)>;
  using Value = Vector<float, kVectorBytes / sizeof(float)>;
  static constexpr int kParts = 4;

  static TIDEGATE_INLINE void Decode(Stored stored, Value (&parts)[4]) {
    for (int i = 0; i < kParts; ++i)
      parts[i] = Format::template Widen<Value>((stored >> (8 * i)) & 0xff);
  }
  static TIDEGATE_INLINE Stored Encode(const Value (&parts)[4]) {
    Stored stored = Format::template Narrow<Stored>(parts[0]);
    for (int i = 1; i < kParts; ++i) stored |= Format::template Narrow<Stored>(parts[i]) << (8 * i);
    return stored;
  }
};

// What the greatest codes stand for.
enum class Specials {
  kIeee,         ///< The exponent of ones: infinity and NaNs.
  kNanLast,      ///< "fn": no infinity; NaN is the last code of each sign.
  kNanMinusZero  ///< "fnuz": no infinity and no negative zero, whose code is the only NaN.
};

/// A sign, an exponent and a fraction, with subnormals.
template <int kFractionBits, int kBias, Specials kSpecials>
struct SignedFormat {
  template <typename Value, typename Stored>
  static TIDEGATE_INLINE Value Widen(Stored code) {
    const Stored sign = (code & 0x80) << 24;
    const Signed magnitude = BitCast<Signed>(code & 0x7f);
    const Signed normal = (magnitude << kDroppedBits) + kBiasDifference;
    const Value smallest = BitCast<Value>(Signed{} + kSmallest);
    const Value steps = __builtin_convertvector(magnitude, Value);
    const Signed subnormal = BitCast<Signed>(steps * smallest);
    Signed bits = magnitude < (1 << kFractionBits) ? subnormal : normal;
    if constexpr (kSpecials == Specials::kIeee)
      bits = magnitude >= kTooLarge ? bits | kFloatInfinity : bits;
    const Signed whole = kSpecials == Specials::kNanMinusZero ? BitCast<Signed>(code) : magnitude;
    if constexpr (kSpecials != Specials::kIeee) bits = whole == kNan ? bits | kFloatNan : bits;
    return BitCast<Value>(BitCast<Stored>(bits) | sign);
  }

  template <typename Stored, typename Value>
  static TIDEGATE_INLINE Stored Narrow(Value value) {
    const Stored bits = BitCast<Stored>(value);
    const Stored sign = (bits >> 24) & 0x80;
    const Stored positive = bits & 0x7fffffff;
    const Signed magnitude = BitCast<Signed>(positive);
    const Stored rebiased = positive - static_cast<std::uint32_t>(kBiasDifference);
    const Signed normal = BitCast<Signed>(AddRounding<kDroppedBits>(rebiased) >> kDroppedBits);
    // One unit in the last place of this float is the smallest element: adding it rounds to that.
    const Signed shifter = Signed{} + kShifter;
    const Signed subnormal =
        BitCast<Signed>(BitCast<Value>(positive) + BitCast<Value>(shifter)) - shifter;
    Signed code = magnitude < kSmallestNormal ? subnormal : normal;
    // Between the greatest number and this, rounding carries into the same code by itself.
    code = magnitude >= kTooLargeFrom ? Signed{} + kTooLarge : code;
    code = magnitude > kFloatInfinity ? Signed{} + kNan : code;
    if constexpr (kSpecials == Specials::kNanMinusZero)
      return BitCast<Stored>(code) | (code != 0 ? sign : Stored{});
    return BitCast<Stored>(code) | sign;
  }

 private:
  // Signed, because SSE2 compares nothing else; magnitudes are never negative.
  using Signed = Vector<std::int32_t, kVectorBytes / sizeof(std::int32_t)>;

  static constexpr std::int32_t Float32Exponent(int exponent) { return (exponent + 127) << 23; }

  static constexpr int kDroppedBits = 23 - kFractionBits;
  static constexpr std::int32_t kBiasDifference = (127 - kBias) << 23;
  static constexpr std::int32_t kFloatInfinity = 0x7f800000;
  static constexpr std::int32_t kFloatNan = 0x7fc00000;
  // What numbers too large become: infinity, else the greatest number, else NaN. torch 2.11 made
  // them NaN in e4m3fn as well; later ones saturate.
  static constexpr std::int32_t kTooLarge = kSpecials == Specials::kIeee      ? 0x7c
                                            : kSpecials == Specials::kNanLast ? 0x7e
                                                                              : 0x80;
  static constexpr std::int32_t kNan = kSpecials == Specials::kNanMinusZero ? 0x80 : 0x7f;
  // Floats, as bits.
  static constexpr std::int32_t kTooLargeFrom = (kTooLarge << kDroppedBits) + kBiasDifference;
  static constexpr std::int32_t kSmallest = Float32Exponent(1 - kBias - kFractionBits);
  static constexpr std::int32_t kSmallestNormal = Float32Exponent(1 - kBias);
  static constexpr std::int32_t kShifter = Float32Exponent(1 - kBias - kFractionBits + 23);
};

/// A power of two from 2^-127 to 2^127, or NaN: neither sign nor zero. The sign of a float is
/// dropped and less than the smallest becomes the smallest, as in torch.
struct ExponentFormat {
  template <typename Value, typename Stored>
  static TIDEGATE_INLINE Value Widen(Stored code) {
    const Stored normal = code << 23;
    const Stored subnormal = Stored{} + 0x00400000;
    const Stored nan = Stored{} + 0x7fc00000;
    const Stored number = code == 0 ? subnormal : normal;
    return BitCast<Value>(code == 0xff ? nan : number);
  }

  template <typename Stored, typename Value>
  static TIDEGATE_INLINE Stored Narrow(Value value) {
    const Stored positive = BitCast<Stored>(value) & 0x7fffffff;
    const Signed magnitude = BitCast<Signed>(positive);
    // Midway between two powers the upper one is the even one, but at 2^-127 itself.
    const Stored rounded = (positive + 0x400000) >> 23;
    const Stored code = magnitude <= 0x400000 ? Stored{} : rounded;
    return magnitude >= 0x7f800000 ? Stored{} + 0xff : code;
  }

 private:
  using Signed = Vector<std::int32_t, kVectorBytes / sizeof(std::int32_t)>;
};

using Float8E4M3FN = Float8<SignedFormat<3, 7, Specials::kNanLast>>;
using Float8E5M2 = Float8<SignedFormat<2, 15, Specials::kIeee>>;
using Float8E4M3FNUZ = Float8<SignedFormat<3, 8, Specials::kNanMinusZero>>;
using Float8E5M2FNUZ = Float8<SignedFormat<2, 16, Specials::kNanMinusZero>>;
using Float8E8M0FNU = Float8<ExponentFormat>;

}  // namespace
}  // namespace tidegate::TIDEGATE_REDUCE_NAMESPACE
