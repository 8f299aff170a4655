// Barrier: no steps of its own. An operation completes only when every rank has arrived at it,
// which is what a barrier asks for (ADR 3).
//
// Cost: alpha and p-1 reads of others' arrivals, one round. Extra memory: none. Nothing is reduced.
// Source: the centralised barrier of Mellor-Crummey, Scott, "Algorithms for scalable
// synchronization on shared-memory multiprocessors", ACM TOCS 9(1), 1991, with a flag for each rank
// instead of one counter.

#include "collectives/algorithms/algorithms.h"
#include "collectives/schedule/builder.h"

namespace tidegate {

Schedule BarrierArrival(const AlgorithmInput& input) {
  return ScheduleBuilder("arrival", Collective::kBarrier, input.rank, input.ranks).Build();
}

}  // namespace tidegate
