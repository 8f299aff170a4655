#include <string>

#include "collectives/verifier/verifier.h"

namespace tidegate {
namespace {

Status Compare(const char* what, const std::vector<std::int64_t>& claimed,
               const std::vector<std::int64_t>& counted) {
  if (claimed.size() != counted.size())
    return Status(StatusCode::kInvalidArgument, "a claim for " + std::to_string(claimed.size()) +
                                                    " nodes of " + std::to_string(counted.size()));
  for (std::size_t node = 0; node < counted.size(); ++node)
    if (claimed[node] != counted[node])
      return Status(StatusCode::kInvalidArgument,
                    "the plan claims that " + std::to_string(claimed[node]) + " bytes " + what +
                        " node " + std::to_string(node) + "; its schedules move " +
                        std::to_string(counted[node]));
  return Status();
}

}  // namespace

Status CheckClaim(const Claim& claim, const Report& report) {
  TIDEGATE_RETURN_IF_ERROR(Compare("leave", claim.leaves, report.leaves));
  return Compare("enter", claim.enters, report.enters);
}

}  // namespace tidegate
