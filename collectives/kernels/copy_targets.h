#pragma once

#include <cstddef>

#include "common/simd/targets.h"

// Internal to collectives/kernels, its tests and its benchmarks: callers use StreamingCopy().

namespace tidegate {

/// StreamingCopy() with the instructions of `target`. REQUIRES: IsSupported(target).
void StreamingCopyFor(KernelTarget target, std::byte* dst, const std::byte* src, std::size_t bytes);

}  // namespace tidegate
