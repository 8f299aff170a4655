// The codes of states in 8 bits, a vector of them. Compiled once a target by the files that include
// it through hwy/foreach_target.h.
#if defined(TIDEGATE_OPTIM_BLOCK8_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_OPTIM_BLOCK8_INL_H
#undef TIDEGATE_OPTIM_BLOCK8_INL_H
#else
#define TIDEGATE_OPTIM_BLOCK8_INL_H
#endif

#include <hwy/highway.h>

#include "offload/optim/block8.h"
#include "offload/optim/elements_inl.h"

#if TIDEGATE_OPTIM_VECTORS

HWY_BEFORE_NAMESPACE();
namespace tidegate::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// MomentumCode of a vector.
struct MomentumLanes {
  static HWY_INLINE Floats Decode(Bits code) {
    const Floats number = hn::ConvertTo(DFloats(), hn::BitCast(DSigned(), code));
    const Bits exponent = hn::And(AsBits(number), Every(0x7f800000));  // 2^k
    const Floats steps = hn::MulAdd(AsFloats(exponent), EveryFloat(-14),
                                    hn::MulAdd(number, EveryFloat(15), EveryFloat(15)));
    // 2^(3k - 28): three times the biased exponent less two and a bit.
    const Bits tripled = hn::Add(hn::Add(exponent, exponent), exponent);
    const Bits scale = hn::Sub(tripled, Every((2 * 127 + 28) << 23));
    const Floats value = hn::Mul(steps, AsFloats(scale));
    return hn::IfThenElseZero(hn::Gt(number, hn::Zero(DFloats())), value);
  }

  static HWY_INLINE Bits Encode(Floats y, Bits random) {
    using Code = MomentumCode;
    const Bits bits = AsBits(y);
    const Bits interval =
        hn::Max(hn::And(hn::Add(bits, Every(0x800000)), Every(0x7e000000)), Every(Code::kLeast));
    const Floats within = AsFloats(hn::Add(hn::Sub(bits, interval), Every(Code::kGreatest)));
    const Floats power = AsFloats(hn::Add(hn::ShiftRight<2>(interval), Every(Code::kPower)));
    const Floats line = hn::MulAdd(within, EveryFloat(Code::kSlope), EveryFloat(Code::kFirst));
    const Floats position = hn::MulAdd(power, line, EveryFloat(-2));
    const Bits dither = hn::Or(hn::And(random, Every(0x7fff80)), Every(0x3f800000));
    // ConvertTo() also looks for what is too large.
    const Floats code = hn::Trunc(hn::Add(position, AsFloats(dither)));
    return hn::Sub(AsBits(hn::Add(code, EveryFloat(0x1p23f))), AsBits(EveryFloat(0x1p23f)));
  }
};

/// SquaresCode of a vector.
struct SquaresLanes {
  using Code = SquaresCode;
  static HWY_INLINE Floats Decode(Bits code) {
    const Bits value = hn::ShiftLeft<Code::kDropped>(hn::Add(code, Every(Code::kZero)));
    return AsFloats(hn::IfThenZeroElse(hn::Eq(code, hn::Zero(DBits())), value));
  }
  /// Without the upper limit, which only `y` above 1 exceeds.
  static HWY_INLINE Bits Encode(Floats y, Bits random) {
    const Bits added = hn::Add(AsBits(y), hn::ShiftRight<32 - Code::kDropped>(random));
    const Bits code = hn::ShiftRight<Code::kDropped>(added);
    return hn::Sub(hn::Max(code, Every(Code::kZero + 1)), Every(Code::kZero));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tidegate::offload
HWY_AFTER_NAMESPACE();

#endif  // TIDEGATE_OPTIM_VECTORS

#endif  // TIDEGATE_OPTIM_BLOCK8_INL_H
