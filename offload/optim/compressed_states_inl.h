// The states of AdamW in 16 and in 8 bits. Compiled once a target by the files that include it
// through hwy/foreach_target.h.
#if defined(TIDEGATE_OPTIM_COMPRESSED_STATES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_OPTIM_COMPRESSED_STATES_INL_H
#undef TIDEGATE_OPTIM_COMPRESSED_STATES_INL_H
#else
#define TIDEGATE_OPTIM_COMPRESSED_STATES_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "offload/optim/block8_inl.h"
#include "offload/optim/elements_inl.h"
#include "offload/optim/random_bits_inl.h"

#if TIDEGATE_OPTIM_VECTORS

HWY_BEFORE_NAMESPACE();
namespace tidegate::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// exp_avg and exp_avg_sq, as Float32States has them.

/// States::kBFloat16: exp_avg to nearest, which a step of a tenth of the difference always moves;
/// exp_avg_sq, of which a step moves a thousandth, by stochastic rounding.
struct BFloat16States {
  static constexpr int kCount = 2;
  static constexpr std::size_t kSize = sizeof(std::uint16_t);
  static constexpr std::size_t kStretch = kBlock;
  /// What RandomWord() of the elements of a block has in common, and what its lanes begin with:
  /// Iota() of Highway 1.0.3 takes longer than all the rest.
  struct Context {
    RandomKey key;
    Bits words[kVectors];
  };

  explicit BFloat16States(const TensorOperands& operands)
      : exp_avg(static_cast<std::uint16_t*>(operands.states[0])),
        exp_avg_sq(static_cast<std::uint16_t*>(operands.states[1])) {}
  HWY_INLINE void Prefetch(std::size_t at, std::size_t ahead) const {
    PrefetchAhead(exp_avg, at, ahead);
    PrefetchAhead(exp_avg_sq, at, ahead);
  }
  HWY_INLINE void Begin(std::size_t stretch, std::uint64_t seed, Context& context) const {
    context.key = KeyOfBlock(seed, stretch / kBlock);
    for (int i = 0; i < kVectors; ++i) {
      const Bits index = hn::Iota(DBits(), static_cast<std::uint32_t>(i * kLanes));
      context.words[i] = hn::Add(hn::Mul(index, Every(kWeyl)), Every(context.key.low));
    }
  }
  HWY_INLINE void Load(std::size_t at, const Context&, Floats (&to)[kCount + 1][kVectors]) const {
    BFloat16Elements::Load(exp_avg + at, to[0]);
    BFloat16Elements::Load(exp_avg_sq + at, to[1]);
  }
  HWY_INLINE void Store(const Floats (&from)[kCount + 1][kVectors], std::size_t at,
                        std::size_t index, const Context& context) const {
    BFloat16Elements::Store(from[0], exp_avg + at);
    const Bits shift = Every(static_cast<std::uint32_t>(index % kBlock) * kWeyl);
    for (int i = 0; i < kVectors; ++i) {
      const Bits random = Scrambled(hn::Add(context.words[i], shift), context.key.high);
      hn::StoreU(Narrowed(Rounded(from[1][i], random)), DHalfWords(), exp_avg_sq + at + i * kLanes);
    }
  }
  HWY_INLINE void End(std::size_t, std::size_t, const Context&) const {}

  /// StochasticBFloat16().
  static HWY_INLINE Bits Rounded(Floats value, Bits random) {
    const Bits bits = AsBits(value);
    const Bits number = hn::Add(bits, hn::ShiftRight<16>(random));
    const Bits quiet = hn::Or(bits, Every(0x400000));
    const auto nan = hn::RebindMask(DBits(), hn::IsNaN(value));
    return hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, number));
  }

  std::uint16_t* exp_avg;
  std::uint16_t* exp_avg_sq;
};

/// States::kBlock8. The values of a stretch wait in float32 for its greatest one to be known.
struct Block8States {
  static constexpr int kCount = 2;
  static constexpr std::size_t kSize = 1;
  static constexpr std::size_t kStretch = kScaleBlock;
  struct Context {
    alignas(kLine) float values[kCount][kScaleBlock];
    float scales[kCount];
    std::uint64_t seed;
    Bits lanes;
    Context() : lanes(hn::Mul(hn::Iota(DBits(), 0), Every(kWeyl))) {}
  };

  explicit Block8States(const TensorOperands& operands) {
    for (int i = 0; i < kCount; ++i) {
      codes[i] = static_cast<std::uint8_t*>(operands.states[i]);
      scales[i] = operands.scales[i];
    }
  }
  HWY_INLINE void Prefetch(std::size_t at, std::size_t ahead) const {
    for (int i = 0; i < kCount; ++i) PrefetchAhead(codes[i], at, ahead);
  }
  HWY_INLINE void Begin(std::size_t stretch, std::uint64_t seed, Context& context) const {
    context.seed = seed;
    for (int i = 0; i < kCount; ++i) context.scales[i] = scales[i][stretch / kScaleBlock];
  }
  HWY_INLINE void Load(std::size_t at, const Context& context,
                       Floats (&to)[kCount + 1][kVectors]) const {
    for (int i = 0; i < kVectors; ++i) {
      const Bits m = hn::PromoteTo(DBits(), hn::LoadU(DCodes(), codes[0] + at + i * kLanes));
      const Bits v = hn::PromoteTo(DBits(), hn::LoadU(DCodes(), codes[1] + at + i * kLanes));
      const Floats magnitude = MomentumLanes::Decode(hn::And(m, Every(0x7f)));
      const Bits sign = hn::ShiftLeft<24>(hn::And(m, Every(0x80)));
      const Floats with_sign = AsFloats(hn::Or(AsBits(magnitude), sign));
      to[0][i] = hn::Mul(with_sign, EveryFloat(context.scales[0]));
      to[1][i] = hn::Mul(SquaresLanes::Decode(v), EveryFloat(context.scales[1]));
    }
  }
  HWY_INLINE void Store(const Floats (&from)[kCount + 1][kVectors], std::size_t, std::size_t index,
                        Context& context) const {
    for (int state = 0; state < kCount; ++state)
      Float32Elements::Store(from[state], context.values[state] + index % kScaleBlock);
  }
  void End(std::size_t stretch, std::size_t count, Context& context) const {
    // The values behind the last one are those of StepAtTail(), which are zero.
    Bits greatest[kCount] = {hn::Zero(DBits()), hn::Zero(DBits())};
    for (std::size_t at = 0; at < count; at += kLanes)
      for (int i = 0; i < kCount; ++i) {
        const Floats magnitude = hn::Abs(hn::Load(DFloats(), context.values[i] + at));
        greatest[i] = hn::Max(greatest[i], AsBits(magnitude));
      }
    Encoder encoder;
    for (int i = 0; i < kCount; ++i) {
      const float scale = Block8Scale(hn::GetLane(hn::MaxOfLanes(DBits(), greatest[i])));
      scales[i][stretch / kScaleBlock] = scale;
      const Block8Factors factors = Block8FactorsOf(scale);
      if (factors.first != 1 || factors.second == 0) Prepare(factors, count, context.values[i]);
      encoder.factors[i] = EveryFloat(factors.second);
    }
    const RandomKey key = KeyOfBlock(context.seed, stretch / kBlock);
    const auto index = static_cast<std::uint32_t>(stretch % kBlock);
    Bits words = hn::Add(context.lanes, Every(key.low + index * kWeyl));
    const std::size_t whole = count - count % kLanes;
    for (std::size_t at = 0; at < whole; at += kLanes) {
      encoder.Encode(context, at, Scrambled(words, key.high), codes[0] + stretch + at,
                     codes[1] + stretch + at);
      words = hn::Add(words, Every(kLanes * kWeyl));
    }
    if (whole != count) {
      std::uint8_t last[kCount][kLanes];
      encoder.Encode(context, whole, Scrambled(words, key.high), last[0], last[1]);
      for (int i = 0; i < kCount; ++i)
        std::memcpy(codes[i] + stretch + whole, last[i], count - whole);
    }
  }

 private:
  using DCodes = hn::Rebind<std::uint8_t, DFloats>;
  using Codes = hn::Vec<DCodes>;

  /// What rarely has to be done first: multiplies with `factors.first`, and where all codes are
  /// zero makes zeros of the values.
  static HWY_NOINLINE void Prepare(Block8Factors factors, std::size_t count, float* values) {
    const auto used = hn::FirstN(DFloats(), factors.second != 0 ? kLanes : 0);
    for (std::size_t at = 0; at < count; at += kLanes) {
      const Floats value = hn::Mul(hn::Load(DFloats(), values + at), EveryFloat(factors.first));
      hn::Store(hn::IfThenElseZero(used, value), DFloats(), values + at);
    }
  }

  /// EncodeSigned8() and EncodeUnsigned8() of what is prepared.
  struct Encoder {
    HWY_INLINE void Encode(const Context& context, std::size_t at, Bits random, std::uint8_t* m,
                           std::uint8_t* v) const {
      hn::StoreU(Signed(hn::Load(DFloats(), context.values[0] + at), random), DCodes(), m);
      hn::StoreU(Unsigned(hn::Load(DFloats(), context.values[1] + at), random), DCodes(), v);
    }

    HWY_INLINE Codes Signed(Floats value, Bits random) const {
      const Bits sign = hn::ShiftLeft<7>(hn::ShiftRight<31>(AsBits(value)));
      const Floats y = hn::Mul(hn::Abs(value), factors[0]);
      return Narrow(hn::Or(MomentumLanes::Encode(y, random), sign));
    }
    HWY_INLINE Codes Unsigned(Floats value, Bits random) const {
      const Bits code = SquaresLanes::Encode(hn::Mul(value, factors[1]), random);
      const auto positive = hn::RebindMask(DBits(), hn::Gt(value, hn::Zero(DFloats())));
      return Narrow(hn::IfThenElseZero(positive, code));  // 255 at most, for it saturates.
    }
    static HWY_INLINE Codes Narrow(Bits code) {
      return hn::DemoteTo(DCodes(), hn::BitCast(DSigned(), code));
    }

    Floats factors[kCount];
  };

  std::uint8_t* codes[kCount];
  float* scales[kCount];
};

}  // namespace HWY_NAMESPACE
}  // namespace tidegate::offload
HWY_AFTER_NAMESPACE();

#endif  // TIDEGATE_OPTIM_VECTORS

#endif  // TIDEGATE_OPTIM_COMPRESSED_STATES_INL_H
