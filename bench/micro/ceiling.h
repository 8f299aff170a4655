#pragma once

#include <cstddef>

#include "common/simd/targets.h"

namespace tidegate::bench {

/// What memory allows a step of an optimizer: reads a gradient and `streams` (1 to 4) arrays of
/// float32, adds the gradient to each and writes them back, fetching `ahead` bytes ahead (0: leaves
/// that to the processor). REQUIRES: IsSupported(target), `count` is a multiple of 16.
void RunCeiling(KernelTarget target, const float* gradient, float* const* streams, int stream_count,
                std::size_t count, std::size_t ahead);

}  // namespace tidegate::bench
