#include "collectives/algorithms/flow_claims.h"

namespace tidegate {
namespace {

void Add(const std::vector<Hop>& hops, std::vector<WireClaim>& claims) {
  for (const Hop& hop : hops) {
    if (hop.medium != Hop::Medium::kWire) continue;
    for (const BlockRun& run : hop.blocks)
      claims.push_back({hop.peer, run.first, run.count, run.stride});
  }
}

}  // namespace

std::vector<WireClaim> ClaimOfSpread(const Flow& flow) {
  std::vector<WireClaim> claims;
  Add(flow.sends, claims);
  return claims;
}

std::vector<WireClaim> ClaimOfCollect(const Flow& flow) {
  std::vector<WireClaim> claims;
  Add(flow.receives, claims);
  return claims;
}

std::vector<WireClaim> ClaimOfCollectAndSpread(const Flow& back, const Flow& forth) {
  std::vector<WireClaim> claims;
  Add(back.receives, claims);
  Add(forth.sends, claims);
  return claims;
}

}  // namespace tidegate
