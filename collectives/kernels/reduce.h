#pragma once

#include <cstddef>

#include "collectives/kernels/dtype.h"
#include "common/status.h"

namespace tidegate {

/// One pass over `sources`: dst[i] = round(finish(combine(sources[0][i], ..., sources[n-1][i]))).
///
/// The order is canonical: sources are combined from 0 to n-1, in the accumulation type (fp32 for
/// floats of 8, 16 and 32 bits, fp64 for float64, the type itself for integers; complex numbers as
/// their parts), without fused multiply-add, and rounded once, to nearest even, to the element
/// type. Encoding into 8 bits follows torch's conversions: what is too large becomes infinity in
/// e5m2, the greatest number in e4m3fn and NaN elsewhere; e8m0fnu has neither sign nor zero, so it
/// takes the magnitude, at least 2^-127.
///   kSum       x0 + x1 + ...; integers wrap; bool: or
///   kAvg       kSum / divisor (true division in the accumulation type); integers: the exact
///              64-bit sum divided, truncated toward zero
///   kPremulSum factors[0] * x0 + factors[1] * x1 + ...; the factors in the accumulation type
///   kMin, kMax NaN if any input is NaN; of equal values (-0 and 0) the first; bool: and, or
///   kProduct   x0 * x1 * ...; integers wrap; bool: and; complex: (a + bi)(c + di) is
///              (ac - bd) + (ad + bc)i, each step rounded
///   kBitAnd, kBitOr, kBitXor  integers: bit by bit; bool: and, or, exclusive or
/// `dst` may be equal to one of the sources but must not overlap them otherwise. Any alignment.
/// REQUIRES: source_count >= 1.
struct ReduceArguments {
  std::byte* dst;
  const std::byte* const* sources;
  int source_count;
  std::size_t elements;
  const double* factors;  ///< One a source; read by kPremulSum only.
  /// Of kAvg: how many contributions the sources hold, source_count where each is one.
  int divisor;
  /// Whether to write past the cache, for output that is larger than it and not read again soon:
  /// the same bits, ordered before later stores of this thread (ends with a store fence).
  bool streaming = false;
};
using ReduceKernel = void (*)(const ReduceArguments& arguments);

/// The kernel for (dtype, op); kUnsupported naming both where the pair has no meaning: AVG of bool,
/// PREMUL_SUM of integers and bool, MIN and MAX of complex numbers, bitwise operations on numbers
/// that are no integers, anything on kOther1.
Result<ReduceKernel> FindReduceKernel(DataType dtype, ReduceOp op);

}  // namespace tidegate
