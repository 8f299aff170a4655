#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "collectives/kernels/dtype.h"
#include "collectives/kernels/float_environment.h"
#include "collectives/kernels/reduce.h"
#include "collectives/kernels/reduce_isa.h"

// The target is chosen here and not by a compiler option, and after every other include: an inline
// function of a header compiled for this target could be the copy that the linker keeps for all.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#define TIDEGATE_REDUCE_NAMESPACE reduce_avx2
#define TIDEGATE_REDUCE_VECTOR_BYTES 32
#include "collectives/kernels/reduce_inl.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // defined(__x86_64__)
