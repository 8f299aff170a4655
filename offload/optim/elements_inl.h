// How groups of elements come from and go to memory: gradients, parameters with and without a
// master, states. Compiled once a target by the files that include it through hwy/foreach_target.h.
#if defined(TIDEGATE_OPTIM_ELEMENTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_OPTIM_ELEMENTS_INL_H
#undef TIDEGATE_OPTIM_ELEMENTS_INL_H
#else
#define TIDEGATE_OPTIM_ELEMENTS_INL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "common/simd/codecs_inl.h"
#include "offload/optim/update.h"

// Whether this target has the fused multiply-add and the conversions of float16 that the steps are
// made of. Where it has not, there is no vector code, and the reference runs.
#undef TIDEGATE_OPTIM_VECTORS
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_BMI2_FMA) && \
     !defined(HWY_DISABLE_F16C)) ||                                              \
    (HWY_ARCH_ARM_A64 && HWY_TARGET <= HWY_NEON)
#define TIDEGATE_OPTIM_VECTORS 1
#else
#define TIDEGATE_OPTIM_VECTORS 0
#endif

#if TIDEGATE_OPTIM_VECTORS

HWY_BEFORE_NAMESPACE();
namespace tidegate::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace simd = ::tidegate::HWY_NAMESPACE;

using simd::AsBits;
using simd::AsFloats;
using simd::Bits;
using simd::DBits;
using simd::DFloats;
using simd::DSigned;
using simd::Every;
using simd::Floats;

/// Elements that are computed at a time: a vector of AVX-512, two of AVX2. The sums of squares have
/// as many lanes.
inline constexpr std::size_t kGroup = 16;
inline constexpr std::size_t kLanes = hn::MaxLanes(DFloats());
inline constexpr int kVectors = kGroup / kLanes;
static_assert(kGroup % kLanes == 0);

inline constexpr std::size_t kLine = 64;

/// How far ahead of the loads lines are fetched, in a step of so many streams: the processor's own
/// prefetchers stop at the end of a page and share their attention among the streams, and what is
/// on its way must not fall out of the cache before. On a Zen 5 AdamW's four are best at 1536
/// (1024: 1%, 2560: 6% slower), the three of SGD and Lion at 2304 (1536: 9%), two at 3072.
constexpr std::size_t AheadBytes(std::size_t streams) { return 6400 / streams; }

HWY_INLINE Floats EveryFloat(float value) { return hn::Set(DFloats(), value); }

// Of an element type: its storage, and a group of it to and from float32.
struct Float32Elements {
  using Storage = float;
  static HWY_INLINE void Load(const float* from, Floats (&to)[kVectors]) {
    for (int i = 0; i < kVectors; ++i) to[i] = hn::LoadU(DFloats(), from + i * kLanes);
  }
  static HWY_INLINE void Store(const Floats (&from)[kVectors], float* to) {
    for (int i = 0; i < kVectors; ++i) hn::StoreU(from[i], DFloats(), to + i * kLanes);
  }
};

using DHalfWords = hn::Rebind<std::uint16_t, DFloats>;
using HalfWords = hn::Vec<DHalfWords>;

// How a vector of 16-bit elements is stored.
struct Cached {
  static HWY_INLINE void Store(HalfWords from, std::uint16_t* to) {
    hn::StoreU(from, DHalfWords(), to);
  }
};
/// Past the cache. REQUIRES: `to` is aligned to a vector.
struct Streaming {
  static HWY_INLINE void Store(HalfWords from, std::uint16_t* to) {
    hn::Stream(from, DHalfWords(), to);
  }
};

/// The low 16 bits of each lane. REQUIRES: the others are zero.
HWY_INLINE HalfWords Narrowed(Bits bits) {
  return hn::DemoteTo(DHalfWords(), hn::BitCast(DSigned(), bits));
}

struct BFloat16Elements {
  using Storage = std::uint16_t;
  static HWY_INLINE Floats Widen(HalfWords stored) {
    return AsFloats(hn::ShiftLeft<16>(hn::PromoteTo(DBits(), stored)));
  }
  static HWY_INLINE void Load(const Storage* from, Floats (&to)[kVectors]) {
    for (int i = 0; i < kVectors; ++i) to[i] = Widen(hn::LoadU(DHalfWords(), from + i * kLanes));
  }
  template <typename Access = Cached>
  static HWY_INLINE void Store(const Floats (&from)[kVectors], Storage* to) {
    for (int i = 0; i < kVectors; ++i) {
      const Bits rounded = hn::ShiftRight<16>(simd::BFloat16::Round(from[i]));
      Access::Store(Narrowed(rounded), to + i * kLanes);
    }
  }
};

struct Float16Elements {
  using Storage = std::uint16_t;
  using DHalves = hn::Rebind<hwy::float16_t, DFloats>;
  static HWY_INLINE void Load(const Storage* from, Floats (&to)[kVectors]) {
    for (int i = 0; i < kVectors; ++i) {
      const HalfWords stored = hn::LoadU(DHalfWords(), from + i * kLanes);
      to[i] = hn::PromoteTo(DFloats(), hn::BitCast(DHalves(), stored));
    }
  }
  template <typename Access = Cached>
  static HWY_INLINE void Store(const Floats (&from)[kVectors], Storage* to) {
    for (int i = 0; i < kVectors; ++i) {
      const auto halves = hn::DemoteTo(DHalves(), from[i]);
      Access::Store(hn::BitCast(DHalfWords(), halves), to + i * kLanes);
    }
  }
};

/// Fetches what a group `ahead` bytes further on will read of a stream.
template <typename T>
HWY_INLINE void PrefetchAhead(const T* stream, std::size_t at, std::size_t ahead) {
  // As an integer, because it may lie beyond the end of the array.
  const auto address = reinterpret_cast<std::uintptr_t>(stream) + at * sizeof(T) + ahead;
  hwy::Prefetch(reinterpret_cast<const char*>(address));
}

// Of a parameter: sizes in memory for the tail, and a group of the value that is updated.

/// Master::kNone.
template <typename E>
struct InPlace {
  using Element = E;
  using Storage = typename Element::Storage;
  static constexpr std::size_t kMasterSize = 0;
  static constexpr bool kMayStream = false;

  explicit InPlace(const TensorOperands& operands)
      : parameter(static_cast<Storage*>(operands.parameter)) {}
  HWY_INLINE void Prefetch(std::size_t at, std::size_t ahead) const {
    PrefetchAhead(parameter, at, ahead);
  }
  HWY_INLINE void Load(std::size_t at, Floats (&to)[kVectors]) const {
    Element::Load(parameter + at, to);
  }
  HWY_INLINE void Store(const Floats (&from)[kVectors], std::size_t at) const {
    Element::Store(from, parameter + at);
  }

  Storage* parameter;
};

/// Master::kFloat32.
template <typename E>
struct WithMaster {
  using Element = E;
  using Storage = typename Element::Storage;
  static constexpr std::size_t kMasterSize = sizeof(float);
  static constexpr bool kMayStream = true;

  explicit WithMaster(const TensorOperands& operands)
      : parameter(static_cast<Storage*>(operands.parameter)),
        master(static_cast<float*>(operands.master)),
        streaming(operands.stream_parameter &&
                  reinterpret_cast<std::uintptr_t>(operands.parameter) % kLine == 0) {}
  HWY_INLINE void Prefetch(std::size_t at, std::size_t ahead) const {
    PrefetchAhead(master, at, ahead);
  }
  HWY_INLINE void Load(std::size_t at, Floats (&to)[kVectors]) const {
    Float32Elements::Load(master + at, to);
  }
  HWY_INLINE void Store(const Floats (&from)[kVectors], std::size_t at) const {
    Float32Elements::Store(from, master + at);
    if (streaming)
      Element::template Store<Streaming>(from, parameter + at);
    else
      Element::template Store<Cached>(from, parameter + at);
  }

  Storage* parameter;
  float* master;
  bool streaming;
};

/// Master::kSplit, the formulas of split_master.h.
struct SplitMaster {
  using Element = BFloat16Elements;
  using Storage = std::uint16_t;
  static constexpr std::size_t kMasterSize = sizeof(std::uint16_t);
  static constexpr bool kMayStream = false;

  explicit SplitMaster(const TensorOperands& operands)
      : upper(static_cast<std::uint16_t*>(operands.parameter)),
        lower(static_cast<std::uint16_t*>(operands.master)) {}
  HWY_INLINE void Prefetch(std::size_t at, std::size_t ahead) const {
    PrefetchAhead(upper, at, ahead);
    PrefetchAhead(lower, at, ahead);
  }
  HWY_INLINE void Load(std::size_t at, Floats (&to)[kVectors]) const {
    const hn::Rebind<std::int16_t, DFloats> d_signed;
    for (int i = 0; i < kVectors; ++i) {
      const HalfWords high = hn::LoadU(DHalfWords(), upper + at + i * kLanes);
      const HalfWords low = hn::LoadU(DHalfWords(), lower + at + i * kLanes);
      const auto rest = hn::PromoteTo(DSigned(), hn::BitCast(d_signed, low));
      const Floats alone = BFloat16Elements::Widen(high);
      const Floats sum = AsFloats(hn::Add(AsBits(alone), hn::BitCast(DBits(), rest)));
      to[i] = hn::IfThenElse(hn::IsNaN(sum), alone, sum);
    }
  }
  HWY_INLINE void Store(const Floats (&from)[kVectors], std::size_t at) const {
    for (int i = 0; i < kVectors; ++i) {
      const auto nan = hn::RebindMask(DBits(), hn::IsNaN(from[i]));
      const Bits bits = hn::IfThenElse(nan, Every(0x7fc00000), AsBits(from[i]));
      const Bits high = hn::ShiftRight<16>(hn::Add(bits, Every(0x8000)));
      const Bits low = hn::And(bits, Every(0xffff));
      hn::StoreU(Narrowed(high), DHalfWords(), upper + at + i * kLanes);
      hn::StoreU(Narrowed(low), DHalfWords(), lower + at + i * kLanes);
    }
  }

  std::uint16_t* upper;
  std::uint16_t* lower;
};

// Of the states of a rule: a group of each to and from float32. A stretch is the kStretch elements
// that share a Context, which Begin() makes and End() takes leave of; groups lie in one stretch
// each. Indices are those of the tensor, but for `at`, which is that of the operands (see
// Updater::StepAtTail).

/// States::kFloat32.
template <int kStates>
struct Float32States {
  static constexpr int kCount = kStates;
  static constexpr std::size_t kSize = sizeof(float);
  static constexpr std::size_t kStretch = kBlock;
  struct Context {};

  explicit Float32States(const TensorOperands& operands) {
    for (int i = 0; i < kCount; ++i) states[i] = static_cast<float*>(operands.states[i]);
  }
  HWY_INLINE void Prefetch(std::size_t at, std::size_t ahead) const {
    for (int i = 0; i < kCount; ++i) PrefetchAhead(states[i], at, ahead);
  }
  HWY_INLINE void Begin(std::size_t, std::uint64_t, Context&) const {}
  HWY_INLINE void Load(std::size_t at, const Context&, Floats (&to)[kCount + 1][kVectors]) const {
    for (int i = 0; i < kCount; ++i) Float32Elements::Load(states[i] + at, to[i]);
  }
  HWY_INLINE void Store(const Floats (&from)[kCount + 1][kVectors], std::size_t at, std::size_t,
                        Context&) const {
    for (int i = 0; i < kCount; ++i) Float32Elements::Store(from[i], states[i] + at);
  }
  HWY_INLINE void End(std::size_t, std::size_t, const Context&) const {}

  float* states[kCount + 1];
};

}  // namespace HWY_NAMESPACE
}  // namespace tidegate::offload
HWY_AFTER_NAMESPACE();

#endif  // TIDEGATE_OPTIM_VECTORS

#endif  // TIDEGATE_OPTIM_ELEMENTS_INL_H
