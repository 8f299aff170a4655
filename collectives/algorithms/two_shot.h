#pragma once

#include "collectives/algorithms/algorithms.h"

namespace tidegate {

/// The common program of two-shot all_reduce and reduce: each rank reduces one part of the tensor
/// and stages the result, which every rank (all_reduce) or only the root (reduce) copies out.
Schedule TwoShot(Collective collective, const AlgorithmInput& input);

}  // namespace tidegate
