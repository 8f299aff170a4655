#pragma once

#include "common/simd/targets.h"
#include "offload/optim/coefficients.h"
#include "offload/optim/layout.h"
#include "offload/optim/update.h"

// Internal to offload/optim, its tests and its benchmarks: callers use FindUpdate() and FindSums().

namespace tidegate::offload {

/// The functions for `target`; null where it lacks the instructions and the reference is what runs.
/// REQUIRES: IsSupported(target), CheckSupported(hyperparameters, layout).
UpdateFunction FindUpdateFor(KernelTarget target, const Hyperparameters& hyperparameters,
                             const Layout& layout);
SumsFunction FindSumsFor(KernelTarget target, ElementType gradient);

// A file each.
UpdateFunction FindAdamUpdateFor(KernelTarget target, const Hyperparameters& hyperparameters,
                                 const Layout& layout);
/// Of AdamW with states in 16 and in 8 bits.
UpdateFunction FindCompressedUpdateFor(KernelTarget target, const Layout& layout);
/// Of SGD, Adagrad and Lion.
UpdateFunction FindSimpleUpdateFor(KernelTarget target, const Hyperparameters& hyperparameters,
                                   const Layout& layout);

}  // namespace tidegate::offload
