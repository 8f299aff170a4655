// What the reduce operations do to vectors. Part of reduce_inl.h, whose first comment says why this
// includes no standard header.
#pragma once

#include "collectives/kernels/vector_inl.h"

namespace tidegate::TIDEGATE_REDUCE_NAMESPACE {
namespace {

// What an operation does to the accumulators. kPremultiplied: sources have factors; kMean: the
// result is divided by the number of sources.
struct Sum {
  static constexpr bool kPremultiplied = false;
  static constexpr bool kMean = false;
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
    return ((b < a) | (b != b)) ? b : a;
  }
};

struct Max : Sum {
  template <typename V>
  static TIDEGATE_INLINE V Combine(V a, V b) {
    return ((b > a) | (b != b)) ? b : a;
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
