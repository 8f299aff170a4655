#include "collectives/kernels/reduce.h"

#include <string>

#include "collectives/kernels/reduce_targets.h"
#include "common/check.h"

namespace tidegate {

ReduceKernel FindReduceKernelFor(KernelTarget target, DataType dtype, ReduceOp op) {
  TIDEGATE_CHECK(IsSupported(target));
  if (const ReduceKernel kernel = FindFloatKernelFor(target, dtype, op)) return kernel;
  if (const ReduceKernel kernel = FindIntegerKernelFor(target, dtype, op)) return kernel;
  return FindFloat8KernelFor(target, dtype, op);
}

Result<ReduceKernel> FindReduceKernel(DataType dtype, ReduceOp op) {
  if (const ReduceKernel kernel = FindFloatKernel(dtype, op)) return kernel;
  if (const ReduceKernel kernel = FindIntegerKernel(dtype, op)) return kernel;
  if (const ReduceKernel kernel = FindFloat8Kernel(dtype, op)) return kernel;
  return Status(StatusCode::kUnsupported, "reduce op " + std::string(NameOf(op)) +
                                              " is not supported for dtype " +
                                              std::string(NameOf(dtype)));
}

}  // namespace tidegate
