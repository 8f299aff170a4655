#pragma once

#include <cstddef>

#include "offload/optim/layout.h"

// What compressed layouts keep, as float32 and back: for checkpoints, for states that move between
// layouts, and for weights that are loaded into a model.

namespace tidegate::offload {

/// One state tensor of `states`, at `from`, as float32: elements [first, first + count), from to[0]
/// on. `squares` tells exp_avg_sq from exp_avg; `scales` are those of States::kBlock8. Exact.
/// REQUIRES: `first` is a multiple of kScaleBlock.
void ExportState(States states, bool squares, const void* from, const float* scales,
                 std::size_t first, std::size_t count, float* to);

/// The reverse, to nearest: what ExportState() gave comes back as it was, bit for bit, in kBlock8
/// where the scale is a normal number. REQUIRES: `first` is a multiple of kScaleBlock; `first +
/// count` is one, too, or the count of the tensor.
void ImportState(States states, bool squares, const float* from, std::size_t first,
                 std::size_t count, void* to, float* scales);

/// The float32 values of a split master, from a bfloat16 parameter and its remainders, and the
/// reverse.
void ExportSplitMaster(const void* parameter, const void* master, std::size_t count, float* to);
void ImportSplitMaster(const float* from, std::size_t count, void* parameter, void* master);

}  // namespace tidegate::offload
