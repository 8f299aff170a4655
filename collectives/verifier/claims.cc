#include "collectives/verifier/claims.h"

#include <algorithm>
#include <string>

#include "collectives/verifier/where.h"

namespace tidegate::verifier {
namespace {

Status Differ(const Schedule& schedule, int to, std::int64_t claimed, std::int64_t counted) {
  const std::string what = "claims to put " + std::to_string(claimed) + " bytes to rank " +
                           std::to_string(to) + ", of another node; its steps put " +
                           std::to_string(counted);
  for (std::size_t i = schedule.steps.size(); i-- > 0;)
    if (schedule.steps[i].dst.buffer == Buffer::kStage && schedule.steps[i].dst.owner == to)
      return Reject(schedule, i, what);
  return Status(StatusCode::kInvalidArgument, Program(schedule) + ": " + what);
}

}  // namespace

Claims::Claims(const Placement& placement, int count, const ClaimOf& claim_of)
    : placement_(placement), made_(claim_of != nullptr && placement.nodes() > 1) {
  for (int rank = 0; made_ && rank < count; ++rank) {
    by_rank_.push_back(claim_of(rank));
    std::ranges::stable_sort(by_rank_.back(), {}, &WireClaim::to);
  }
}

Status Claims::Check(const Blocks& blocks, const Report& report,
                     const std::vector<Schedule>& schedules) const {
  if (!made_) return Status();
  auto put = report.put.begin();
  for (std::size_t rank = 0; rank < by_rank_.size(); ++rank) {
    const int from = static_cast<int>(rank);
    const std::vector<WireClaim>& claims = by_rank_[rank];
    auto claim = claims.begin();
    const auto is_put_here = [&] { return put != report.put.end() && put->from == from; };
    while (claim != claims.end() || is_put_here()) {
      if (is_put_here() && placement_.node_of(put->to) == placement_.node_of(from)) {
        ++put;
        continue;
      }
      const int to =
          claim != claims.end() && (!is_put_here() || claim->to < put->to) ? claim->to : put->to;
      std::int64_t claimed = 0;
      for (; claim != claims.end() && claim->to == to; ++claim) {
        const std::int64_t last = claim->block + std::int64_t{claim->count - 1} * claim->stride;
        if (claim->block < 0 || last >= blocks.sizes() || to < 0 || to >= blocks.ranks() ||
            placement_.node_of(to) == placement_.node_of(from))
          return Status(StatusCode::kInvalidArgument,
                        "rank " + std::to_string(from) + " claims to put blocks " +
                            std::to_string(claim->block) + " to " + std::to_string(last) + " of " +
                            std::to_string(blocks.sizes()) + " to rank " + std::to_string(to) +
                            ", of another node: there is no such block, or no such rank");
        for (int i = 0; i < claim->count; ++i)
          claimed += blocks.SizeAt(claim->block + std::int64_t{i} * claim->stride);
      }
      const std::int64_t counted = is_put_here() && put->to == to ? (put++)->bytes : 0;
      if (claimed != counted) return Differ(schedules[rank], to, claimed, counted);
    }
  }
  return Status();
}

}  // namespace tidegate::verifier
