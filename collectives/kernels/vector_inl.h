// Vectors of one instruction set and the element types stored in them. Part of reduce_inl.h, whose
// first comment says why it includes nothing.
#pragma once

#define TIDEGATE_INLINE __attribute__((always_inline)) inline

namespace tidegate::TIDEGATE_REDUCE_NAMESPACE {
namespace {

inline constexpr std::size_t kVectorBytes = TIDEGATE_REDUCE_VECTOR_BYTES;

template <typename T, std::size_t kLanes>
struct VectorOf {
  // NOLINTNEXTLINE(modernize-use-using): the attribute stands where gcc wants it.
  typedef T Type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <typename T, std::size_t kLanes>
using Vector = typename VectorOf<T, kLanes>::Type;

template <typename To, typename From>
TIDEGATE_INLINE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return (To)from;  // Between vectors a cast keeps the bits.
}

/// Adds what makes dropping the low `kBits` bits of each lane a rounding to nearest even.
template <int kBits, typename V>
TIDEGATE_INLINE V AddRounding(V bits) {
  return bits + ((1u << (kBits - 1)) - 1) + ((bits >> kBits) & 1);
}

// A codec says how a vector in memory, Stored, becomes kParts vectors of the accumulation type and
// how those become a vector in memory again. Which lane belongs to which element is its own affair:
// the operations work lane by lane.

/// An element type that is its own accumulation type.
template <typename T>
struct Plain {
  using Storage = T;
  using Accumulator = T;
  using Stored = Vector<T, kVectorBytes / sizeof(T)>;
  using Value = Stored;
  static constexpr int kParts = 1;

  static TIDEGATE_INLINE void Decode(Stored stored, Value (&parts)[1]) { parts[0] = stored; }
  static TIDEGATE_INLINE Stored Encode(const Value (&parts)[1]) { return parts[0]; }
};

/// Zero or one, whatever non-zero byte stood for true.
struct Bool : Plain<std::uint8_t> {
  static TIDEGATE_INLINE void Decode(Stored stored, Value (&parts)[1]) {
    parts[0] = BitCast<Value>(stored != 0) & 1;
  }
};

/// 16 bits in memory, float32 in registers: a vector of memory seen as 32-bit lanes holds an even
/// element in the low half of a lane and an odd one in the high half, so that they part and meet
/// without shuffles.
struct SixteenBit {
  using Storage = std::uint16_t;
  using Accumulator = float;
  using Stored = Vector<std::uint32_t, kVectorBytes / sizeof(std::uint32_t)>;
  using Value = Vector<float, kVectorBytes / sizeof(float)>;
  static constexpr int kParts = 2;
};

struct BFloat16 : SixteenBit {
  static TIDEGATE_INLINE void Decode(Stored stored, Value (&parts)[2]) {
    parts[0] = BitCast<Value>(stored << 16);
    parts[1] = BitCast<Value>(stored & 0xffff0000);
  }
  static TIDEGATE_INLINE Stored Encode(const Value (&parts)[2]) {
    return (Round(parts[0]) >> 16) | (Round(parts[1]) & 0xffff0000);
  }

 private:
  static TIDEGATE_INLINE Stored Round(Value value) {
    const Stored bits = BitCast<Stored>(value);
    // Rounding could carry a NaN's payload away, into infinity or into the sign.
    const Stored quiet = bits | 0x400000;
    return value != value ? quiet : AddRounding<16>(bits);
  }
};

#if TIDEGATE_REDUCE_VECTOR_BYTES == 16

// Exactly what the conversion instructions used below compute.
struct Float16 : SixteenBit {
  static TIDEGATE_INLINE void Decode(Stored stored, Value (&parts)[2]) {
    parts[0] = Widen(stored & 0xffff);
    parts[1] = Widen(stored >> 16);
  }
  static TIDEGATE_INLINE Stored Encode(const Value (&parts)[2]) {
    return Narrow(parts[0]) | (Narrow(parts[1]) << 16);
  }

 private:
  // Signed, because SSE2 compares nothing else; magnitudes are never negative.
  using Signed = Vector<std::int32_t, kVectorBytes / sizeof(std::int32_t)>;

  static TIDEGATE_INLINE Value Widen(Stored half) {
    const Stored sign = (half & 0x8000) << 16;
    const Signed magnitude = BitCast<Signed>(half & 0x7fff);
    const Signed normal = (magnitude << 13) + kBiasDifference;
    const Value steps = __builtin_convertvector(magnitude, Value);
    const Signed subnormal = BitCast<Signed>(steps * kSmallestHalf);
    const Signed special = (magnitude << 13) | kFloatInfinity;
    const Signed quiet = special | 0x400000;
    Signed bits = magnitude < 0x400 ? subnormal : normal;
    bits = magnitude >= 0x7c00 ? special : bits;
    bits = magnitude > 0x7c00 ? quiet : bits;
    return BitCast<Value>(BitCast<Stored>(bits) | sign);
  }

  static TIDEGATE_INLINE Stored Narrow(Value value) {
    const Stored bits = BitCast<Stored>(value);
    const Stored sign = (bits >> 16) & 0x8000;
    const Stored positive = bits & 0x7fffffff;
    const Signed magnitude = BitCast<Signed>(positive);
    // Values from 65520 up round to 0x7c00, which is infinity, by carrying into the exponent.
    const Stored rebiased = positive - static_cast<std::uint32_t>(kBiasDifference);
    const Signed normal = BitCast<Signed>(AddRounding<13>(rebiased) >> 13);
    // One unit in the last place of 0.5f is the smallest half, so the addition rounds to it.
    const Signed subnormal = BitCast<Signed>(BitCast<Value>(positive) + 0.5f) - kFloatOneHalf;
    const Signed infinity = magnitude * 0 + 0x7c00;
    const Signed quiet = ((magnitude >> 13) & 0x3ff) | 0x7e00;
    Signed half = magnitude < kSmallestNormalHalf ? subnormal : normal;
    half = magnitude >= kFloat65536 ? infinity : half;
    half = magnitude > kFloatInfinity ? quiet : half;
    return BitCast<Stored>(half) | sign;
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
  using Value = Vector<float, kVectorBytes / sizeof(float)>;
  using Stored = Vector<std::uint16_t, kVectorBytes / sizeof(float)>;
  static constexpr int kParts = 1;

#if TIDEGATE_REDUCE_VECTOR_BYTES == 64
  // All lanes by mask: gcc 12 warns about its own header in the forms without one.
  static TIDEGATE_INLINE void Decode(Stored stored, Value (&parts)[1]) {
    parts[0] = BitCast<Value>(_mm512_maskz_cvtph_ps(0xffff, BitCast<__m256i>(stored)));
  }
  static TIDEGATE_INLINE Stored Encode(const Value (&parts)[1]) {
    return BitCast<Stored>(_mm512_maskz_cvtps_ph(0xffff, BitCast<__m512>(parts[0]), kToNearest));
  }
#else
  static TIDEGATE_INLINE void Decode(Stored stored, Value (&parts)[1]) {
    parts[0] = BitCast<Value>(_mm256_cvtph_ps(BitCast<__m128i>(stored)));
  }
  static TIDEGATE_INLINE Stored Encode(const Value (&parts)[1]) {
    return BitCast<Stored>(_mm256_cvtps_ph(BitCast<__m256>(parts[0]), kToNearest));
  }
#endif

 private:
  static constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT;
};

#endif

}  // namespace
}  // namespace tidegate::TIDEGATE_REDUCE_NAMESPACE
