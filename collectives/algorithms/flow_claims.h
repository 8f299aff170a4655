#pragma once

#include <vector>

#include "collectives/algorithms/flow.h"
#include "collectives/schedule/wire_claim.h"

namespace tidegate {

// What a rank of a flow puts over the wire: counted on its hops, not on the steps that lower.h
// makes of them.

/// Forwards, what it sends.
std::vector<WireClaim> ClaimOfSpread(const Flow& flow);
/// Backwards, what it received forwards.
std::vector<WireClaim> ClaimOfCollect(const Flow& flow);
/// Both: of `back`, then of `forth`, which may be one flow.
std::vector<WireClaim> ClaimOfCollectAndSpread(const Flow& back, const Flow& forth);

}  // namespace tidegate
