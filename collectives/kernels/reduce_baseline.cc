#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "collectives/kernels/dtype.h"
#include "collectives/kernels/float_environment.h"
#include "collectives/kernels/reduce.h"
#include "collectives/kernels/reduce_isa.h"

// The vector size of SSE2 and of NEON; no instruction beyond what the compiler may use anyway.
#define TIDEGATE_REDUCE_NAMESPACE reduce_baseline
#define TIDEGATE_REDUCE_VECTOR_BYTES 16
#include "collectives/kernels/reduce_inl.h"
