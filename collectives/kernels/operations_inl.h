// What the reduce operations do to vectors. Compiled once a target by the files that include it
// through hwy/foreach_target.h.
#if defined(TIDEGATE_KERNELS_OPERATIONS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_KERNELS_OPERATIONS_INL_H
#undef TIDEGATE_KERNELS_OPERATIONS_INL_H
#else
#define TIDEGATE_KERNELS_OPERATIONS_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tidegate {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What an operation does to the accumulators. kPremultiplied: sources have factors; kMean: the
// result is divided by the number of sources; kComplex: it sees all parts of a vector at once
// (CombineParts) because lanes depend on their neighbours.
struct Sum {
  static constexpr bool kPremultiplied = false;
  static constexpr bool kMean = false;
  static constexpr bool kComplex = false;
  template <typename V>
  static HWY_INLINE V Combine(V a, V b) {
    return hn::Add(a, b);
  }
};

struct Average : Sum {
  static constexpr bool kMean = true;
};

struct PremultipliedSum : Sum {
  static constexpr bool kPremultiplied = true;
};

struct Product : Sum {
  template <typename V>
  static HWY_INLINE V Combine(V a, V b) {
    if constexpr (sizeof(hn::TFromV<V>) == 1) {
      return MultiplyBytes(a, b);
    } else {
      return hn::Mul(a, b);
    }
  }

 private:
  // Modulo 256. No instruction set multiplies bytes: the even ones in place, the odd ones shifted.
  template <typename V>
  static HWY_INLINE V MultiplyBytes(V a, V b) {
    const hn::DFromV<V> d;
    const hn::Repartition<std::uint16_t, decltype(d)> pairs;
    const auto even = hn::Mul(hn::BitCast(pairs, a), hn::BitCast(pairs, b));
    const auto odd =
        hn::Mul(hn::ShiftRight<8>(hn::BitCast(pairs, a)), hn::ShiftRight<8>(hn::BitCast(pairs, b)));
    return hn::BitCast(d, hn::Or(hn::And(even, hn::Set(pairs, 0xff)), hn::ShiftLeft<8>(odd)));
  }
};

// `b` where it is less, or greater, than `a`; else, and where either is a NaN, `a`. Just so do the
// instructions of x86, which Highway's Min and Max are, choose between `b` and `a` in this order.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
template <typename V>
HWY_INLINE V LesserOrFirst(V a, V b) {
  return hn::Min(b, a);
}
template <typename V>
HWY_INLINE V GreaterOrFirst(V a, V b) {
  return hn::Max(b, a);
}
#else
template <typename V>
HWY_INLINE V LesserOrFirst(V a, V b) {
  return hn::IfThenElse(hn::Lt(b, a), b, a);
}
template <typename V>
HWY_INLINE V GreaterOrFirst(V a, V b) {
  return hn::IfThenElse(hn::Gt(b, a), b, a);
}
#endif

// Of equal values (-0.0 and 0.0) the earlier source's is kept, and a NaN of either.
struct Min : Sum {
  template <typename V>
  static HWY_INLINE V Combine(V a, V b) {
    if constexpr (std::is_floating_point_v<hn::TFromV<V>>) {
      return hn::IfThenElse(hn::IsNaN(b), b, LesserOrFirst(a, b));
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max : Sum {
  template <typename V>
  static HWY_INLINE V Combine(V a, V b) {
    if constexpr (std::is_floating_point_v<hn::TFromV<V>>) {
      return hn::IfThenElse(hn::IsNaN(b), b, GreaterOrFirst(a, b));
    } else {
      return hn::Max(a, b);
    }
  }
};

struct BitAnd : Sum {
  template <typename V>
  static HWY_INLINE V Combine(V a, V b) {
    return hn::And(a, b);
  }
};

struct BitOr : Sum {
  template <typename V>
  static HWY_INLINE V Combine(V a, V b) {
    return hn::Or(a, b);
  }
};

struct BitXor : Sum {
  template <typename V>
  static HWY_INLINE V Combine(V a, V b) {
    return hn::Xor(a, b);
  }
};

/// (a + bi)(c + di) = (ac - bd) + (ad + bc)i, each product and sum rounded by itself. Infinite
/// factors are not treated apart, as in torch's own vectors.
struct ComplexProduct : Sum {
  static constexpr bool kComplex = true;

  /// Real and imaginary parts in turn.
  template <typename V>
  static HWY_INLINE void CombineParts(V (&sums)[1], const V (&terms)[1]) {
    const hn::DFromV<V> d;
    const V straight = hn::Mul(hn::DupEven(sums[0]), terms[0]);
    const V crossed = hn::Mul(hn::DupOdd(sums[0]), hn::Reverse2(d, terms[0]));
    sums[0] = hn::OddEven(hn::Add(straight, crossed), hn::Sub(straight, crossed));
  }

  /// Real parts in one vector, imaginary parts in the other.
  template <typename V>
  static HWY_INLINE void CombineParts(V (&sums)[2], const V (&terms)[2]) {
    const V real = hn::Sub(hn::Mul(sums[0], terms[0]), hn::Mul(sums[1], terms[1]));
    sums[1] = hn::Add(hn::Mul(sums[0], terms[1]), hn::Mul(sums[1], terms[0]));
    sums[0] = real;
  }
};

/// Divides by the number of sources. Multiplying by the reciprocal of a power of two gives the same
/// bits, because both are the one exact quotient rounded, at a fraction of the time.
template <typename T>
class MeanDivisor {
 public:
  explicit MeanDivisor(int count)
      : divisor_(static_cast<T>(count)),
        reciprocal_(T{1} / static_cast<T>(count)),
        multiply_((count & (count - 1)) == 0) {}

  template <typename V>
  HWY_INLINE V Apply(V sum) const {
    const hn::DFromV<V> d;
    return multiply_ ? hn::Mul(sum, hn::Set(d, reciprocal_)) : hn::Div(sum, hn::Set(d, divisor_));
  }

 private:
  T divisor_;
  T reciprocal_;
  bool multiply_;
};

struct NoDivisor {
  explicit NoDivisor(int) {}
};

}  // namespace HWY_NAMESPACE
}  // namespace tidegate
HWY_AFTER_NAMESPACE();

#endif  // TIDEGATE_KERNELS_OPERATIONS_INL_H
