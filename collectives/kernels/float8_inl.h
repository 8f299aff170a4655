// Codecs of the 8-bit floats. Compiled once a target by the files that include it through
// hwy/foreach_target.h.
//
// 8 bits in memory, float32 in registers: a vector of memory seen as 32-bit lanes holds four
// elements in each, which part and meet by shifts alone. The conversions are arithmetic on bits
// rather than look-ups in tables, because only AVX2 and later have a gather, and a slow one.
#if defined(TIDEGATE_KERNELS_FLOAT8_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_KERNELS_FLOAT8_INL_H
#undef TIDEGATE_KERNELS_FLOAT8_INL_H
#else
#define TIDEGATE_KERNELS_FLOAT8_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "common/simd/codecs_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// `Format` converts between one element in the low 8 bits of a lane and a float32.
template <typename Format>
struct Float8 {
  using Storage = std::uint8_t;
  using Accumulator = float;
  using DStored = DBits;
  using DValue = DFloats;
  static constexpr int kParts = 4;

  static HWY_INLINE void Decode(Bits stored, Floats (&parts)[4]) {
    parts[0] = Format::Widen(hn::And(stored, Every(0xff)));
    parts[1] = Format::Widen(hn::And(hn::ShiftRight<8>(stored), Every(0xff)));
    parts[2] = Format::Widen(hn::And(hn::ShiftRight<16>(stored), Every(0xff)));
    parts[3] = Format::Widen(hn::ShiftRight<24>(stored));
  }
  static HWY_INLINE Bits Encode(const Floats (&parts)[4]) {
    const Bits low = hn::Or(Format::Narrow(parts[0]), hn::ShiftLeft<8>(Format::Narrow(parts[1])));
    const Bits high = hn::Or(hn::ShiftLeft<16>(Format::Narrow(parts[2])),
                             hn::ShiftLeft<24>(Format::Narrow(parts[3])));
    return hn::Or(low, high);
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
  static TIDEGATE_CONVERSION Floats Widen(Bits code) {
    const Bits sign = hn::ShiftLeft<24>(hn::And(code, Every(0x80)));
    const Signed magnitude = AsSigned(hn::And(code, Every(0x7f)));
    const Signed normal =
        hn::Add(hn::ShiftLeft<kDroppedBits>(magnitude), EverySigned(kBiasDifference));
    const Floats steps = hn::ConvertTo(DFloats(), magnitude);
    const Signed subnormal = AsSigned(hn::Mul(steps, AsFloats(EverySigned(kSmallest))));
    Signed bits =
        hn::IfThenElse(hn::Lt(magnitude, EverySigned(1 << kFractionBits)), subnormal, normal);
    if constexpr (kSpecials == Specials::kIeee) {
      const auto special = hn::Gt(magnitude, EverySigned(kTooLarge - 1));
      bits = hn::IfThenElse(special, hn::Or(bits, EverySigned(kFloatInfinity)), bits);
    } else {
      const Signed whole = kSpecials == Specials::kNanMinusZero ? AsSigned(code) : magnitude;
      const auto nan = hn::Eq(whole, EverySigned(kNan));
      bits = hn::IfThenElse(nan, hn::Or(bits, EverySigned(kFloatNan)), bits);
    }
    return AsFloats(hn::Or(AsBits(bits), sign));
  }

  static TIDEGATE_CONVERSION Bits Narrow(Floats value) {
    const Bits bits = AsBits(value);
    const Bits sign = hn::And(hn::ShiftRight<24>(bits), Every(0x80));
    const Bits positive = hn::And(bits, Every(0x7fffffff));
    const Signed magnitude = AsSigned(positive);
    const Bits rebiased = hn::Sub(positive, Every(static_cast<std::uint32_t>(kBiasDifference)));
    const Signed normal =
        AsSigned(hn::ShiftRight<kDroppedBits>(AddRounding<kDroppedBits>(rebiased)));
    // One unit in the last place of this float is the smallest element: adding it rounds to that.
    const Signed shifter = EverySigned(kShifter);
    const Signed subnormal =
        hn::Sub(AsSigned(hn::Add(AsFloats(positive), AsFloats(shifter))), shifter);
    Signed code =
        hn::IfThenElse(hn::Lt(magnitude, EverySigned(kSmallestNormal)), subnormal, normal);
    // Between the greatest number and this, rounding carries into the same code by itself.
    code = hn::IfThenElse(hn::Gt(magnitude, EverySigned(kTooLargeFrom - 1)), EverySigned(kTooLarge),
                          code);
    code = hn::IfThenElse(hn::Gt(magnitude, EverySigned(kFloatInfinity)), EverySigned(kNan), code);
    if constexpr (kSpecials == Specials::kNanMinusZero) {
      const auto zero = hn::Eq(code, EverySigned(0));
      return AsBits(hn::IfThenZeroElse(zero, hn::Or(code, AsSigned(sign))));
    }
    return hn::Or(AsBits(code), sign);
  }

 private:
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
  static TIDEGATE_CONVERSION Floats Widen(Bits code) {
    const Bits normal = hn::ShiftLeft<23>(code);
    const Bits number = hn::IfThenElse(hn::Eq(code, Every(0)), Every(0x00400000), normal);
    return AsFloats(hn::IfThenElse(hn::Eq(code, Every(0xff)), Every(0x7fc00000), number));
  }

  static TIDEGATE_CONVERSION Bits Narrow(Floats value) {
    const Bits positive = hn::And(AsBits(value), Every(0x7fffffff));
    const Signed magnitude = AsSigned(positive);
    // Midway between two powers the upper one is the even one, but at 2^-127 itself.
    const Signed rounded = AsSigned(hn::ShiftRight<23>(hn::Add(positive, Every(0x400000))));
    const Signed code = hn::IfThenElseZero(hn::Gt(magnitude, EverySigned(0x400000)), rounded);
    const auto too_large = hn::Gt(magnitude, EverySigned(0x7f7fffff));
    return AsBits(hn::IfThenElse(too_large, EverySigned(0xff), code));
  }
};

using Float8E4M3FN = Float8<SignedFormat<3, 7, Specials::kNanLast>>;
using Float8E5M2 = Float8<SignedFormat<2, 15, Specials::kIeee>>;
using Float8E4M3FNUZ = Float8<SignedFormat<3, 8, Specials::kNanMinusZero>>;
using Float8E5M2FNUZ = Float8<SignedFormat<2, 16, Specials::kNanMinusZero>>;
using Float8E8M0FNU = Float8<ExponentFormat>;

}  // namespace HWY_NAMESPACE
}  // namespace tidegate
HWY_AFTER_NAMESPACE();

#endif  // TIDEGATE_KERNELS_FLOAT8_INL_H
