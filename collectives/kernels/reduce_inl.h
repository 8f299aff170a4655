// The reduction kernels of one instruction set. The including file sets TIDEGATE_REDUCE_NAMESPACE,
// TIDEGATE_REDUCE_VECTOR_BYTES and the compiler's target, and includes every header needed here
// beforehand (see reduce_avx2.cc for why).
//
// Vectors are written out with the compiler's portable vector types rather than left to its
// auto-vectoriser: a block of accumulators must stay in registers while the loop over the sources
// runs inside, which reads every source once, a few cache lines at a time, and needs no memory for
// sums however many sources there are.
#pragma once

#include "collectives/kernels/float8_inl.h"
#include "collectives/kernels/operations_inl.h"
#include "collectives/kernels/reducer_inl.h"
#include "collectives/kernels/vector_inl.h"

namespace tidegate::TIDEGATE_REDUCE_NAMESPACE {
namespace {

template <typename Codec>
ReduceKernel FindFloating(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return Reducer<Codec, Sum>::Run;
    case ReduceOp::kAvg:
      return Reducer<Codec, Average>::Run;
    case ReduceOp::kPremulSum:
      return Reducer<Codec, PremultipliedSum>::Run;
    case ReduceOp::kMin:
      return Reducer<Codec, Min>::Run;
    case ReduceOp::kMax:
      return Reducer<Codec, Max>::Run;
    case ReduceOp::kProduct:
      return Reducer<Codec, Product>::Run;
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
    case ReduceOp::kNone:
      break;
  }
  return nullptr;
}

/// `Codec` is that of the real and imaginary parts. Complex numbers have no order.
template <typename Codec>
ReduceKernel FindComplex(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return OverParts<Reducer<Codec, Sum>::Run>;
    case ReduceOp::kAvg:
      return OverParts<Reducer<Codec, Average>::Run>;
    case ReduceOp::kPremulSum:
      return OverParts<Reducer<Codec, PremultipliedSum>::Run>;
    case ReduceOp::kProduct:
      return OverParts<Reducer<Codec, ComplexProduct>::Run>;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
    case ReduceOp::kNone:
      break;
  }
  return nullptr;
}

template <typename T>
ReduceKernel FindInteger(ReduceOp op) {
  using Wrapping = Plain<std::make_unsigned_t<T>>;  // Signed overflow is undefined in vectors too.
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

}  // namespace

ReduceKernel Find(DataType dtype, ReduceOp op) {
  switch (dtype) {
    case DataType::kFloat32:
      return FindFloating<Plain<float>>(op);
    case DataType::kFloat64:
      return FindFloating<Plain<double>>(op);
    case DataType::kBFloat16:
      return FindFloating<BFloat16>(op);
    case DataType::kFloat16:
      return FindFloating<Float16>(op);
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
    case DataType::kComplex32:
      return FindComplex<Float16>(op);
    case DataType::kComplex64:
      return FindComplex<Plain<float>>(op);
    case DataType::kComplex128:
      return FindComplex<Plain<double>>(op);
    case DataType::kFloat8E4M3FN:
      return FindFloating<Float8E4M3FN>(op);
    case DataType::kFloat8E5M2:
      return FindFloating<Float8E5M2>(op);
    case DataType::kFloat8E4M3FNUZ:
      return FindFloating<Float8E4M3FNUZ>(op);
    case DataType::kFloat8E5M2FNUZ:
      return FindFloating<Float8E5M2FNUZ>(op);
    case DataType::kFloat8E8M0FNU:
      return FindFloating<Float8E8M0FNU>(op);
    case DataType::kOther1:
      break;
  }
  return nullptr;
}

}  // namespace tidegate::TIDEGATE_REDUCE_NAMESPACE

#undef TIDEGATE_INLINE
