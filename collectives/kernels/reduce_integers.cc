// The kernels of integers and bools, for every target.
#include "common/simd/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/kernels/reduce_integers.cc"
#include <hwy/foreach_target.h>
// After the loop over targets.
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "collectives/kernels/dtype.h"
#include "collectives/kernels/operations_inl.h"
#include "collectives/kernels/reduce.h"
#include "collectives/kernels/reducer_inl.h"
#include "common/simd/codecs_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate {
namespace HWY_NAMESPACE {

/// AVG, in 64 bits. Plain loops: no instruction set divides vectors of integers, and nothing of a
/// training step averages them.
template <typename T>
void AverageIntegers(const ReduceArguments& arguments) {
  constexpr std::size_t kBlock = 512;
  using Quotient = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  const auto count_of_sources = static_cast<Quotient>(arguments.divisor);
  std::uint64_t sums[kBlock];  // Unsigned, so that int64 wraps.
  for (std::size_t begin = 0; begin < arguments.elements; begin += kBlock) {
    const std::size_t left = arguments.elements - begin;
    const std::size_t count = left < kBlock ? left : kBlock;
    for (std::size_t i = 0; i < count; ++i) sums[i] = 0;
    for (int source = 0; source < arguments.source_count; ++source) {
      const std::byte* from = arguments.sources[source] + begin * sizeof(T);
      for (std::size_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, from + i * sizeof(T), sizeof(T));
        sums[i] += static_cast<std::uint64_t>(value);
      }
    }
    std::byte* to = arguments.dst + begin * sizeof(T);
    for (std::size_t i = 0; i < count; ++i) {
      const T mean = static_cast<T>(static_cast<Quotient>(sums[i]) / count_of_sources);
      std::memcpy(to + i * sizeof(T), &mean, sizeof(T));
    }
  }
}

template <typename T>
ReduceKernel FindInteger(ReduceOp op) {
  using Wrapping = Plain<std::make_unsigned_t<T>>;
  switch (op) {
    case ReduceOp::kSum:
      return Reducer<Wrapping, Sum>::Run;
    case ReduceOp::kAvg:
      return AverageIntegers<T>;
    case ReduceOp::kMin:
      return Reducer<Plain<T>, Min>::Run;
    case ReduceOp::kMax:
      return Reducer<Plain<T>, Max>::Run;
    case ReduceOp::kProduct:
      return Reducer<Wrapping, Product>::Run;
    case ReduceOp::kBitAnd:
      return Reducer<Wrapping, BitAnd>::Run;
    case ReduceOp::kBitOr:
      return Reducer<Wrapping, BitOr>::Run;
    case ReduceOp::kBitXor:
      return Reducer<Wrapping, BitXor>::Run;
    case ReduceOp::kPremulSum:
    case ReduceOp::kNone:
      break;
  }
  return nullptr;
}

ReduceKernel FindBool(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBitOr:
      return Reducer<Bool, BitOr>::Run;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
      return Reducer<Bool, BitAnd>::Run;
    case ReduceOp::kBitXor:
      return Reducer<Bool, BitXor>::Run;
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
    case ReduceOp::kNone:
      break;
  }
  return nullptr;
}

ReduceKernel FindIntegerKernelHere(DataType dtype, ReduceOp op) {
  switch (dtype) {
    case DataType::kInt8:
      return FindInteger<std::int8_t>(op);
    case DataType::kUint8:
      return FindInteger<std::uint8_t>(op);
    case DataType::kInt16:
      return FindInteger<std::int16_t>(op);
    case DataType::kInt32:
      return FindInteger<std::int32_t>(op);
    case DataType::kInt64:
      return FindInteger<std::int64_t>(op);
    case DataType::kBool:
      return FindBool(op);
    case DataType::kUint16:
      return FindInteger<std::uint16_t>(op);
    case DataType::kUint32:
      return FindInteger<std::uint32_t>(op);
    case DataType::kUint64:
      return FindInteger<std::uint64_t>(op);
    default:
      return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tidegate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "collectives/kernels/reduce_targets.h"
#include "common/simd/dispatch.h"

namespace tidegate {

HWY_EXPORT(FindIntegerKernelHere);

ReduceKernel FindIntegerKernel(DataType dtype, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(FindIntegerKernelHere)(dtype, op);
}

ReduceKernel FindIntegerKernelFor(KernelTarget target, DataType dtype, ReduceOp op) {
  return ForTarget(HWY_DISPATCH_TABLE(FindIntegerKernelHere), target)(dtype, op);
}

}  // namespace tidegate

#endif  // HWY_ONCE
