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

/// How far ahead of the loads lines are fetched. The processor's own prefetchers stop at the end of
/// a page and share their attention among seven streams.
inline constexpr std::size_t kAheadBytes = 1024;

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
  static HWY_INLINE void Store(const Floats (&from)[kVectors], Storage* to) {
    for (int i = 0; i < kVectors; ++i) {
      const Bits rounded = hn::ShiftRight<16>(simd::BFloat16::Round(from[i]));
      hn::StoreU(Narrowed(rounded), DHalfWords(), to + i * kLanes);
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
  static HWY_INLINE void Store(const Floats (&from)[kVectors], Storage* to) {
    for (int i = 0; i < kVectors; ++i) {
      const auto halves = hn::DemoteTo(DHalves(), from[i]);
      hn::StoreU(hn::BitCast(DHalfWords(), halves), DHalfWords(), to + i * kLanes);
    }
  }
};

/// Fetches what a group `kAheadBytes` further on will read of a stream.
template <typename T>
HWY_INLINE void PrefetchAhead(const T* stream, std::size_t at) {
  // As an integer, because it may lie beyond the end of the array.
  const auto address = reinterpret_cast<std::uintptr_t>(stream) + at * sizeof(T) + kAheadBytes;
  hwy::Prefetch(reinterpret_cast<const char*>(address));
}

// Of a parameter: sizes in memory for the tail, and a group of the value that is updated.

/// Master::kNone.
template <typename E>
struct InPlace {
  using Element = E;
  using Storage = typename Element::Storage;
  static constexpr std::size_t kMasterSize = 0;

  explicit InPlace(const TensorOperands& operands)
      : parameter(static_cast<Storage*>(operands.parameter)) {}
  HWY_INLINE void Prefetch(std::size_t at) const { PrefetchAhead(parameter, at); }
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

  explicit WithMaster(const TensorOperands& operands)
      : parameter(static_cast<Storage*>(operands.parameter)),
        master(static_cast<float*>(operands.master)) {}
  HWY_INLINE void Prefetch(std::size_t at) const { PrefetchAhead(master, at); }
  HWY_INLINE void Load(std::size_t at, Floats (&to)[kVectors]) const {
    Float32Elements::Load(master + at, to);
  }
  HWY_INLINE void Store(const Floats (&from)[kVectors], std::size_t at) const {
    Float32Elements::Store(from, master + at);
    Element::Store(from, parameter + at);
  }

  Storage* parameter;
  float* master;
};

/// States::kFloat32.
template <int kStates>
struct Float32States {
  static constexpr int kCount = kStates;
  static constexpr std::size_t kSize = sizeof(float);

  explicit Float32States(const TensorOperands& operands) {
    for (int i = 0; i < kCount; ++i) states[i] = static_cast<float*>(operands.states[i]);
  }
  HWY_INLINE void Prefetch(std::size_t at) const {
    for (int i = 0; i < kCount; ++i) PrefetchAhead(states[i], at);
  }
  HWY_INLINE void Load(std::size_t at, Floats (&to)[kCount + 1][kVectors]) const {
    for (int i = 0; i < kCount; ++i) Float32Elements::Load(states[i] + at, to[i]);
  }
  HWY_INLINE void Store(const Floats (&from)[kCount + 1][kVectors], std::size_t at) const {
    for (int i = 0; i < kCount; ++i) Float32Elements::Store(from[i], states[i] + at);
  }

  float* states[kCount + 1];
};

}  // namespace HWY_NAMESPACE
}  // namespace tidegate::offload
HWY_AFTER_NAMESPACE();

#endif  // TIDEGATE_OPTIM_VECTORS

#endif  // TIDEGATE_OPTIM_ELEMENTS_INL_H
