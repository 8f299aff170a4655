#pragma once

#include "collectives/algorithms/flow.h"
#include "collectives/schedule/schedule.h"

namespace tidegate {

// From a flow to the program of its rank. Each hop becomes a put or a get with the waits and
// signals that it needs, one iteration of the chunk loop a time step, so that the hops of
// consecutive chunks overlap. Cost: proportional to the hops of this rank and their blocks.

/// Blocks from their owners to all: all_gather where rank r owns block r, broadcast where the root
/// owns all.
Schedule Spread(const Flow& flow, Collective collective);

/// The transpose: every hop backwards and in reverse order, and where Spread copied a block to
/// several ranks their contributions are reduced, in one pass and in the order of the ranks that
/// they come from, this rank's own among them. reduce_scatter where rank r owns block r, reduce
/// where the root owns all.
Schedule Collect(const Flow& flow, Collective collective);

/// all_reduce: Collect of `back`, then Spread of `forth`, of a tensor cut into one part for each
/// rank. The two have one name and may be one flow.
Schedule CollectAndSpread(const Flow& back, const Flow& forth);

}  // namespace tidegate
