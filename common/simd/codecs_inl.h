// Element types: how a vector in memory becomes vectors of the accumulation type and how those
// become a vector in memory again. Compiled once a target by the files that include it through
// hwy/foreach_target.h.
#if defined(TIDEGATE_SIMD_CODECS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_SIMD_CODECS_INL_H
#undef TIDEGATE_SIMD_CODECS_INL_H
#else
#define TIDEGATE_SIMD_CODECS_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

// Conversions of a dozen steps. On EMU128 each step is a loop over an array, of which thousands of
// inlined copies would take minutes to compile.
#undef TIDEGATE_CONVERSION
#if HWY_TARGET == HWY_EMU128
#define TIDEGATE_CONVERSION HWY_NOINLINE
#else
#define TIDEGATE_CONVERSION HWY_INLINE
#endif

HWY_BEFORE_NAMESPACE();
namespace tidegate {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A codec has a tag DStored of vectors in memory, a tag DValue of vectors of the accumulation type
// and the number kParts of those that one in memory becomes. Which lane belongs to which element is
// its own affair: the operations work lane by lane.

/// The lanes of a vector, each as wide as a float32.
using DFloats = hn::ScalableTag<float>;
using DBits = hn::ScalableTag<std::uint32_t>;
using DSigned = hn::ScalableTag<std::int32_t>;  // Of magnitudes, which are never negative.
using Floats = hn::Vec<DFloats>;
using Bits = hn::Vec<DBits>;
using Signed = hn::Vec<DSigned>;

HWY_INLINE Bits AsBits(Floats v) { return hn::BitCast(DBits(), v); }
HWY_INLINE Bits AsBits(Signed v) { return hn::BitCast(DBits(), v); }
HWY_INLINE Signed AsSigned(Floats v) { return hn::BitCast(DSigned(), v); }
HWY_INLINE Signed AsSigned(Bits v) { return hn::BitCast(DSigned(), v); }
HWY_INLINE Floats AsFloats(Bits v) { return hn::BitCast(DFloats(), v); }
HWY_INLINE Floats AsFloats(Signed v) { return hn::BitCast(DFloats(), v); }
HWY_INLINE Bits Every(std::uint32_t bits) { return hn::Set(DBits(), bits); }
HWY_INLINE Signed EverySigned(std::int32_t bits) { return hn::Set(DSigned(), bits); }

/// Adds what makes dropping the low `kDropped` bits of each lane a rounding to nearest even.
template <int kDropped>
HWY_INLINE Bits AddRounding(Bits bits) {
  const Bits odd = hn::And(hn::ShiftRight<kDropped>(bits), Every(1));
  return hn::Add(hn::Add(bits, Every((1u << (kDropped - 1)) - 1)), odd);
}

/// An element type that is its own accumulation type.
template <typename T>
struct Plain {
  using Storage = T;
  using Accumulator = T;
  using DStored = hn::ScalableTag<T>;
  using DValue = DStored;
  using Stored = hn::Vec<DStored>;
  static constexpr int kParts = 1;

  static HWY_INLINE void Decode(Stored stored, Stored (&parts)[1]) { parts[0] = stored; }
  static HWY_INLINE Stored Encode(const Stored (&parts)[1]) { return parts[0]; }
};

/// Zero or one, whatever non-zero byte stood for true.
struct Bool : Plain<std::uint8_t> {
  static HWY_INLINE void Decode(Stored stored, Stored (&parts)[1]) {
    parts[0] = hn::Min(stored, hn::Set(DStored(), 1));
  }
};

/// 16 bits in memory, float32 in registers: a vector of memory seen as 32-bit lanes holds an even
/// element in the low half of a lane and an odd one in the high half, so that they part and meet
/// without shuffles.
struct SixteenBit {
  using Storage = std::uint16_t;
  using Accumulator = float;
  using DStored = DBits;
  using DValue = DFloats;
  static constexpr int kParts = 2;
};

/// No conversion instruction: those of AVX-512 BF16 flush subnormals, which torch keeps, and
/// Highway's own conversion cuts off (docs/adr/0008-highway.md has the figures).
struct BFloat16 : SixteenBit {
  static HWY_INLINE void Decode(Bits stored, Floats (&parts)[2]) {
    parts[0] = AsFloats(hn::ShiftLeft<16>(stored));
    parts[1] = AsFloats(hn::And(stored, Every(0xffff0000)));
  }
  static HWY_INLINE Bits Encode(const Floats (&parts)[2]) {
    return hn::Or(hn::ShiftRight<16>(Round(parts[0])), hn::And(Round(parts[1]), Every(0xffff0000)));
  }
  /// The nearest bfloat16, ties to even, in the upper half of each lane; the lower has no meaning.
  static TIDEGATE_CONVERSION Bits Round(Floats value) {
    const Bits bits = AsBits(value);
    // Rounding could carry a NaN's payload away, into infinity or into the sign.
    const Bits quiet = hn::Or(bits, Every(0x400000));
    // Chosen among integers, where the compiler merges the choice with the operations around it.
    return hn::IfThenElse(hn::RebindMask(DBits(), hn::IsNaN(value)), quiet, AddRounding<16>(bits));
  }
};

// AVX2 and later and NEON convert by an instruction, which rounds to nearest even and keeps
// subnormals. What Highway does instead on other targets does neither.
#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SSE4 || \
    (HWY_ARCH_X86 && defined(HWY_DISABLE_F16C))

/// Exactly what the conversion instructions compute.
struct Float16 : SixteenBit {
  static HWY_INLINE void Decode(Bits stored, Floats (&parts)[2]) {
    parts[0] = Widen(hn::And(stored, Every(0xffff)));
    parts[1] = Widen(hn::ShiftRight<16>(stored));
  }
  static HWY_INLINE Bits Encode(const Floats (&parts)[2]) {
    return hn::Or(Narrow(parts[0]), hn::ShiftLeft<16>(Narrow(parts[1])));
  }

 private:
  static TIDEGATE_CONVERSION Floats Widen(Bits half) {
    const Bits sign = hn::ShiftLeft<16>(hn::And(half, Every(0x8000)));
    const Signed magnitude = AsSigned(hn::And(half, Every(0x7fff)));
    const Signed shifted = hn::ShiftLeft<13>(magnitude);
    const Signed normal = hn::Add(shifted, EverySigned(kBiasDifference));
    const Floats steps = hn::ConvertTo(DFloats(), magnitude);
    const Signed subnormal = AsSigned(hn::Mul(steps, hn::Set(DFloats(), kSmallestHalf)));
    const Signed special = hn::Or(shifted, EverySigned(kFloatInfinity));
    const Signed quiet = hn::Or(special, EverySigned(0x400000));
    Signed bits = hn::IfThenElse(hn::Lt(magnitude, EverySigned(0x400)), subnormal, normal);
    bits = hn::IfThenElse(hn::Gt(magnitude, EverySigned(0x7bff)), special, bits);
    bits = hn::IfThenElse(hn::Gt(magnitude, EverySigned(0x7c00)), quiet, bits);
    return AsFloats(hn::Or(AsBits(bits), sign));
  }

  static TIDEGATE_CONVERSION Bits Narrow(Floats value) {
    const Bits bits = AsBits(value);
    const Bits sign = hn::And(hn::ShiftRight<16>(bits), Every(0x8000));
    const Bits positive = hn::And(bits, Every(0x7fffffff));
    const Signed magnitude = AsSigned(positive);
    // Values from 65520 up round to 0x7c00, which is infinity, by carrying into the exponent.
    const Bits rebiased = hn::Sub(positive, Every(static_cast<std::uint32_t>(kBiasDifference)));
    const Signed normal = AsSigned(hn::ShiftRight<13>(AddRounding<13>(rebiased)));
    // One unit in the last place of 0.5f is the smallest half, so the addition rounds to it.
    const Floats shifted = hn::Add(AsFloats(positive), hn::Set(DFloats(), 0.5f));
    const Signed subnormal = hn::Sub(AsSigned(shifted), EverySigned(kFloatOneHalf));
    const Signed payload = AsSigned(hn::And(hn::ShiftRight<13>(positive), Every(0x3ff)));
    const Signed quiet = hn::Or(payload, EverySigned(0x7e00));
    Signed half =
        hn::IfThenElse(hn::Lt(magnitude, EverySigned(kSmallestNormalHalf)), subnormal, normal);
    half =
        hn::IfThenElse(hn::Gt(magnitude, EverySigned(kFloat65536 - 1)), EverySigned(0x7c00), half);
    half = hn::IfThenElse(hn::Gt(magnitude, EverySigned(kFloatInfinity)), quiet, half);
    return hn::Or(AsBits(half), sign);
  }

  static constexpr std::int32_t kBiasDifference = (127 - 15) << 23;
  static constexpr std::int32_t kFloatInfinity = 0x7f800000;
  static constexpr std::int32_t kFloat65536 = 0x47800000;
  static constexpr std::int32_t kFloatOneHalf = 0x3f000000;
  static constexpr std::int32_t kSmallestNormalHalf = 0x38800000;  // 2^-14
  static constexpr float kSmallestHalf = 0x1p-24f;
};

#else

/// The conversion instructions read half a vector from memory at no extra cost.
struct Float16 {
  using Storage = std::uint16_t;
  using Accumulator = float;
  using DHalves = hn::Rebind<hwy::float16_t, DFloats>;
  using DStored = hn::Rebind<std::uint16_t, DFloats>;
  using DValue = DFloats;
  static constexpr int kParts = 1;

  static HWY_INLINE void Decode(hn::Vec<DStored> stored, Floats (&parts)[1]) {
    parts[0] = hn::PromoteTo(DFloats(), hn::BitCast(DHalves(), stored));
  }
  static HWY_INLINE hn::Vec<DStored> Encode(const Floats (&parts)[1]) {
    return hn::BitCast(DStored(), hn::DemoteTo(DHalves(), parts[0]));
  }
};

#endif

}  // namespace HWY_NAMESPACE
}  // namespace tidegate
HWY_AFTER_NAMESPACE();

#endif  // TIDEGATE_SIMD_CODECS_INL_H
