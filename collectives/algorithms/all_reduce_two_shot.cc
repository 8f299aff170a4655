// All-reduce as reduce-scatter and all-gather; cost and order of reduction in two_shot.cc.

#include "collectives/algorithms/two_shot.h"

namespace tidegate {

Schedule AllReduceTwoShot(const AlgorithmInput& input) {
  return TwoShot(Collective::kAllReduce, input);
}

}  // namespace tidegate
