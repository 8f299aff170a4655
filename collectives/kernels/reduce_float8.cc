// The kernels of floats of 8 bits, for every target.
#include "common/simd/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/kernels/reduce_float8.cc"
#include <hwy/foreach_target.h>
// After the loop over targets.
#include <hwy/highway.h>

#include "collectives/kernels/dtype.h"
#include "collectives/kernels/float8_inl.h"
#include "collectives/kernels/reduce.h"
#include "collectives/kernels/reducer_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate {
namespace HWY_NAMESPACE {

ReduceKernel FindFloat8KernelHere(DataType dtype, ReduceOp op) {
  switch (dtype) {
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

HWY_EXPORT(FindFloat8KernelHere);

ReduceKernel FindFloat8Kernel(DataType dtype, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(FindFloat8KernelHere)(dtype, op);
}

ReduceKernel FindFloat8KernelFor(KernelTarget target, DataType dtype, ReduceOp op) {
  return ForTarget(HWY_DISPATCH_TABLE(FindFloat8KernelHere), target)(dtype, op);
}

}  // namespace tidegate

#endif  // HWY_ONCE
