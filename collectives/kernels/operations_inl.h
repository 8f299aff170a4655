// What the reduce operations do to vectors. Part of reduce_inl.h, whose first comment says why this
// includes no standard header.
#pragma once

#include "collectives/kernels/vector_inl.h"

namespace tidegate::TIDEGATE_REDUCE_NAMESPACE {
namespace {

// What an operation does to the accumulators. kPremultiplied: sources have factors; kMean: the
// result is divided by the number of sources; kComplex: it sees all parts of a vector at once
// (CombineParts) because lanes depend on their neighbours.
struct Sum {
  static constexpr bool kPremultiplied = false;
  static constexpr bool kMean = false;
  static constexpr bool kComplex = false;
  template <typename V>
  static TIDEGATE_INLINE V Combine(V a, V b) {
    return a + b;
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
  static TIDEGATE_INLINE V Combine(V a, V b) {
    return a * b;
  }
};

// Of equal values (-0.0 and 0.0) the earlier source's is kept. A NaN in `b` wins by the second
// comparison, one in `a` because both are false.
struct Min : Sum {
  template <typename V>
  static TIDEGATE_INLINE V Combine(V a, V b) {
    return ((b < a) | (b != b)) ? b : a;  // NOLINT(misc-redundant-expression)
  }
};

struct Max : Sum {
  template <typename V>
  static TIDEGATE_INLINE V Combine(V a, V b) {
    return ((b > a) | (b != b)) ? b : a;  // NOLINT(misc-redundant-expression)
  }
};

struct BitAnd : Sum {
  template <typename V>
  static TIDEGATE_INLINE V Combine(V a, V b) {
    return a & b;
  }
};

struct BitOr : Sum {
  template <typename V>
  static TIDEGATE_INLINE V Combine(V a, V b) {
    return a | b;
  }
};

struct BitXor : Sum {
  template <typename V>
  static TIDEGATE_INLINE V Combine(V a, V b) {
    return a ^ b;
  }
};

/// (a + bi)(c + di) = (ac - bd) + (ad + bc)i, each product and sum rounded by itself. Infinite
/// factors are not treated apart, as in torch's own vectors.
struct ComplexProduct : Sum {
  static constexpr bool kComplex = true;

  /// Real and imaginary parts in turn.
  template <typename V>
  static TIDEGATE_INLINE void CombineParts(V (&sums)[1], const V (&terms)[1]) {
    constexpr std::size_t kLanes = sizeof(V) / sizeof(terms[0][0]);
    sums[0] = Multiply(sums[0], terms[0], std::make_index_sequence<kLanes>());
  }

  /// Real parts in one vector, imaginary parts in the other.
  template <typename V>
  static TIDEGATE_INLINE void CombineParts(V (&sums)[2], const V (&terms)[2]) {
    const V real = sums[0] * terms[0] - sums[1] * terms[1];
    sums[1] = sums[0] * terms[1] + sums[1] * terms[0];
    sums[0] = real;
  }

 private:
  template <typename V, std::size_t... kLane>
  static TIDEGATE_INLINE V Multiply(V a, V b, std::index_sequence<kLane...>) {
    constexpr std::size_t kLanes = sizeof...(kLane);
    const V real = __builtin_shufflevector(a, a, (kLane & ~std::size_t{1})...);
    const V imaginary = __builtin_shufflevector(a, a, (kLane | 1)...);
    const V swapped = __builtin_shufflevector(b, b, (kLane ^ 1)...);
    const V straight = real * b;
    const V crossed = imaginary * swapped;
    return __builtin_shufflevector(straight - crossed, straight + crossed,
                                   (kLane % 2 == 0 ? kLane : kLane + kLanes)...);
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
  TIDEGATE_INLINE V Apply(V sum) const {
    return multiply_ ? sum * reciprocal_ : sum / divisor_;
  }

 private:
  T divisor_;
  T reciprocal_;
  bool multiply_;
};

struct NoDivisor {
  explicit NoDivisor(int) {}
};

}  // namespace
}  // namespace tidegate::TIDEGATE_REDUCE_NAMESPACE
