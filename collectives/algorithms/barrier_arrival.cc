// Barrier: no steps of its own. An operation completes only when every rank has arrived at it,
// which is what a barrier asks for. Cost: alpha, one round.

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule BarrierArrival(const AlgorithmInput& input) {
  return ScheduleBuilder("arrival", Collective::kBarrier, input.rank, input.ranks).Build();
}

}  // namespace tidegate
