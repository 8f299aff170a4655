#pragma once

#include "collectives/kernels/dtype.h"
#include "collectives/kernels/isa.h"
#include "collectives/kernels/reduce.h"

// Internal to collectives/kernels and its tests: callers use FindReduceKernel().

namespace tidegate {

/// The kernel for `isa`; null where the (dtype, op) pair has no meaning. REQUIRES: IsaSupported().
ReduceKernel FindReduceKernelFor(Isa isa, DataType dtype, ReduceOp op);

// One definition of each, from reduce_inl.h compiled for that instruction set.
namespace reduce_baseline {
ReduceKernel Find(DataType dtype, ReduceOp op);
}
#if defined(__x86_64__)
namespace reduce_avx2 {
ReduceKernel Find(DataType dtype, ReduceOp op);
}
namespace reduce_avx512 {
ReduceKernel Find(DataType dtype, ReduceOp op);
}
#endif

}  // namespace tidegate
