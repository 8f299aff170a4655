#pragma once

#include <vector>

#include "collectives/verifier/blocks.h"
#include "collectives/verifier/verifier.h"

namespace tidegate::verifier {

/// What the ranks that are executed say that they put over the wire, against what they did.
class Claims {
 public:
  /// Of ranks 0 .. count - 1; `claim_of` may be null: nothing is claimed, and nothing checked.
  Claims(const Placement& placement, int count, const ClaimOf& claim_of);

  /// Names the ranks between which `report` counted other bytes than claimed for these blocks, and
  /// the last step of `schedules` that puts any there. Cost: the claims, and the transfers of the
  /// report.
  Status Check(const Blocks& blocks, const Report& report,
               const std::vector<Schedule>& schedules) const;

 private:
  const Placement& placement_;
  bool made_;
  std::vector<std::vector<WireClaim>> by_rank_;  ///< By their receivers.
};

}  // namespace tidegate::verifier
