// The kernels of floats of 16 bits and more and of complex numbers, for every target.
#include "common/simd/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/kernels/reduce_floats.cc"
#include <hwy/foreach_target.h>
// After the loop over targets.
#include <hwy/highway.h>

#include "collectives/kernels/dtype.h"
#include "collectives/kernels/operations_inl.h"
#include "collectives/kernels/reduce.h"
#include "collectives/kernels/reducer_inl.h"
#include "common/simd/codecs_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate {
namespace HWY_NAMESPACE {

/// Runs a kernel of real numbers over complex ones: twice as many elements.
template <ReduceKernel kKernel>
void OverParts(const ReduceArguments& arguments) {
  ReduceArguments parts = arguments;
  parts.elements *= 2;
  kKernel(parts);
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

ReduceKernel FindFloatKernelHere(DataType dtype, ReduceOp op) {
  switch (dtype) {
    case DataType::kFloat32:
      return FindFloating<Plain<float>>(op);
    case DataType::kFloat64:
      return FindFloating<Plain<double>>(op);
    case DataType::kBFloat16:
      return FindFloating<BFloat16>(op);
    case DataType::kFloat16:
      return FindFloating<Float16>(op);
    case DataType::kComplex32:
      return FindComplex<Float16>(op);
    case DataType::kComplex64:
      return FindComplex<Plain<float>>(op);
    case DataType::kComplex128:
      return FindComplex<Plain<double>>(op);
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

HWY_EXPORT(FindFloatKernelHere);

ReduceKernel FindFloatKernel(DataType dtype, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(FindFloatKernelHere)(dtype, op);
}

ReduceKernel FindFloatKernelFor(KernelTarget target, DataType dtype, ReduceOp op) {
  return ForTarget(HWY_DISPATCH_TABLE(FindFloatKernelHere), target)(dtype, op);
}

}  // namespace tidegate

#endif  // HWY_ONCE
