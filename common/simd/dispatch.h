#pragma once

#include <hwy/highway.h>

#include <cstddef>

#include "common/simd/targets.h"

// Internal to the files of kernels that export a table of functions.

namespace tidegate {

/// The function for `target` of a table that HWY_EXPORT made, whatever target is the best here.
template <typename Function, std::size_t kSize>
Function ForTarget(Function const (&table)[kSize], KernelTarget target) {
  if constexpr (kSize == 1) {  // Compiled for a single target.
    return table[0];
  } else {
    hwy::ChosenTarget chosen;
    chosen.Update(target);
    return table[chosen.GetIndex()];
  }
}

}  // namespace tidegate
