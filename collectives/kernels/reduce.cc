#include "collectives/kernels/reduce.h"

#include <string>

#include "collectives/kernels/reduce_isa.h"
#include "common/check.h"

namespace tidegate {

ReduceKernel FindReduceKernelFor(Isa isa, DataType dtype, ReduceOp op) {
  TIDEGATE_CHECK(IsaSupported(isa));
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return reduce_avx512::Find(dtype, op);
  if (isa == Isa::kAvx2) return reduce_avx2::Find(dtype, op);
#endif
  return reduce_baseline::Find(dtype, op);
}

Result<ReduceKernel> FindReduceKernel(DataType dtype, ReduceOp op) {
  if (const ReduceKernel kernel = FindReduceKernelFor(BestIsa(), dtype, op)) return kernel;
  return Status(StatusCode::kUnsupported, "reduce op " + std::string(NameOf(op)) +
                                              " is not supported for dtype " +
                                              std::string(NameOf(dtype)));
}

}  // namespace tidegate
