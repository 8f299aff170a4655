#pragma once

#include <cstddef>

#include "offload/optim/coefficients.h"
#include "offload/optim/layout.h"
#include "offload/optim/update.h"

// The specification: one element at a time, in plain C++, every rounding in sight. Kernels give the
// same bits. Also what runs where the processor has no fused multiply-add (docs/offload.md),
// slowly.

namespace tidegate::offload {

/// One element in a step, all in float32: what is read, then what is written.
struct StepElement {
  float gradient;  ///< Multiplied with its factor.
  float parameter;
  float states[3];
};

/// The formulas of `c.rule`.
void ReferenceStep(const Coefficients& c, StepElement& element);

/// Sums the squares of up to kBlock gradients in 16 lanes of doubles, element i in lane i mod 16 in
/// order of i; then lanes 8 apart are added, and what that gives 4, 2 and 1 apart.
class ReferenceSums {
 public:
  void Add(std::size_t index_in_block, float gradient);
  BlockSums Finish() const;

 private:
  static constexpr std::size_t kLanes = 16;
  double lanes_[kLanes] = {};
};

/// REQUIRES: CheckSupported(hyperparameters, layout).
UpdateFunction FindReferenceUpdate(const Hyperparameters& hyperparameters, const Layout& layout);
SumsFunction FindReferenceSums(ElementType gradient);

}  // namespace tidegate::offload
