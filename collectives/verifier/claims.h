#pragma once

#include <string>
#include <vector>

#include "collectives/verifier/blocks.h"
#include "collectives/verifier/verifier.h"

namespace tidegate::verifier {

/// What the ranks that are executed say that they put over the wire, against what they did.
class Claims {
 public:
  /// Of ranks 0 .. count - 1; `claim_of` may be null: nothing is claimed, and nothing checked.
  /// `topology`, which may be null, is for what Check says.
  Claims(const Placement& placement, int count, const ClaimOf& claim_of, const Topology* topology);

  /// Names the ranks between which `report` counted other bytes than claimed for these blocks, the
  /// last step of `schedules` that puts any there, and a link of the topology that carries others
  /// than claimed. Cost: the claims, and the transfers of the report; of a rejection their routes.
  Status Check(const Blocks& blocks, const Report& report,
               const std::vector<Schedule>& schedules) const;

 private:
  Result<std::vector<RankBytes>> Transfers(const Blocks& blocks) const;
  std::string DifferingLink(const std::vector<RankBytes>& claimed,
                            const std::vector<RankBytes>& counted) const;

  const Placement& placement_;
  const Topology* topology_;
  bool made_;
  std::vector<std::vector<WireClaim>> by_rank_;  ///< By their receivers.
};

}  // namespace tidegate::verifier
