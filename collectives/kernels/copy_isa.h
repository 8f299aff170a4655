#pragma once

#include <cstddef>

#include "collectives/kernels/isa.h"

// Internal to collectives/kernels and its tests: callers use StreamingCopy().

namespace tidegate {

/// StreamingCopy() with the instructions of `isa`. REQUIRES: IsaSupported(isa).
void StreamingCopyFor(Isa isa, std::byte* dst, const std::byte* src, std::size_t bytes);

}  // namespace tidegate
