#pragma once

#include "collectives/kernels/dtype.h"
#include "collectives/kernels/reduce.h"
#include "common/simd/targets.h"

// Internal to collectives/kernels, its tests and its benchmarks: callers use FindReduceKernel().

namespace tidegate {

/// The kernel for `target`; null where the (dtype, op) pair has no meaning.
/// REQUIRES: IsSupported(target).
ReduceKernel FindReduceKernelFor(KernelTarget target, DataType dtype, ReduceOp op);

// A file each, null for the dtypes of the others: of the best target and of a given one.
ReduceKernel FindFloatKernel(DataType dtype, ReduceOp op);
ReduceKernel FindFloatKernelFor(KernelTarget target, DataType dtype, ReduceOp op);
ReduceKernel FindFloat8Kernel(DataType dtype, ReduceOp op);
ReduceKernel FindFloat8KernelFor(KernelTarget target, DataType dtype, ReduceOp op);
ReduceKernel FindIntegerKernel(DataType dtype, ReduceOp op);
ReduceKernel FindIntegerKernelFor(KernelTarget target, DataType dtype, ReduceOp op);

}  // namespace tidegate
