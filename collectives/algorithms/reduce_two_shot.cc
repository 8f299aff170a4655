// Reduce as reduce-scatter and gather, so that all ranks share the additions; cost and order of
// reduction in two_shot.cc.

#include "collectives/algorithms/two_shot.h"

namespace tidegate {

Schedule ReduceTwoShot(const AlgorithmInput& input) { return TwoShot(Collective::kReduce, input); }

}  // namespace tidegate
