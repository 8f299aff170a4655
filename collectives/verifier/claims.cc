#include "collectives/verifier/claims.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "collectives/verifier/link_bytes.h"
#include "collectives/verifier/where.h"

namespace tidegate::verifier {
namespace {

Status Differ(const Schedule& schedule, int to, std::int64_t claimed, std::int64_t counted,
              const std::string& link) {
  const std::string what = "claims to put " + std::to_string(claimed) + " bytes to rank " +
                           std::to_string(to) + ", of another node; its steps put " +
                           std::to_string(counted) + link;
  for (std::size_t i = schedule.steps.size(); i-- > 0;)
    if (schedule.steps[i].dst.buffer == Buffer::kStage && schedule.steps[i].dst.owner == to)
      return Reject(schedule, i, what);
  return Status(StatusCode::kInvalidArgument, Program(schedule) + ": " + what);
}

/// Stripes divide bytes.
std::string Rounded(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f", bytes);
  return text;
}

}  // namespace

Claims::Claims(const Placement& placement, int count, const ClaimOf& claim_of,
               const Topology* topology)
    : placement_(placement),
      topology_(topology),
      made_(claim_of != nullptr && placement.nodes() > 1) {
  for (int rank = 0; made_ && rank < count; ++rank) {
    by_rank_.push_back(claim_of(rank));
    std::ranges::stable_sort(by_rank_.back(), {}, &WireClaim::to);
  }
}

/// What is claimed for these blocks, by (from, to).
Result<std::vector<RankBytes>> Claims::Transfers(const Blocks& blocks) const {
  std::vector<RankBytes> transfers;
  for (std::size_t rank = 0; rank < by_rank_.size(); ++rank) {
    const int from = static_cast<int>(rank);
    for (const WireClaim& claim : by_rank_[rank]) {
      const std::int64_t last = claim.block + std::int64_t{claim.count - 1} * claim.stride;
      if (claim.block < 0 || last >= blocks.sizes() || claim.to < 0 || claim.to >= blocks.ranks() ||
          placement_.node_of(claim.to) == placement_.node_of(from))
        return Status(StatusCode::kInvalidArgument,
                      "rank " + std::to_string(from) + " claims to put blocks " +
                          std::to_string(claim.block) + " to " + std::to_string(last) + " of " +
                          std::to_string(blocks.sizes()) + " to rank " + std::to_string(claim.to) +
                          ", of another node: there is no such block, or no such rank");
      if (transfers.empty() || transfers.back().from != from || transfers.back().to != claim.to)
        transfers.push_back({from, claim.to, 0});
      for (int i = 0; i < claim.count; ++i)
        transfers.back().bytes += blocks.SizeAt(claim.block + std::int64_t{i} * claim.stride);
    }
  }
  return transfers;
}

/// Empty without a topology, where not all ranks are executed, and where all links carry what is
/// claimed, between other ranks. A link of the fabric, if one differs: others are of a node.
std::string Claims::DifferingLink(const std::vector<RankBytes>& claimed,
                                  const std::vector<RankBytes>& counted) const {
  if (topology_ == nullptr || static_cast<int>(by_rank_.size()) < topology_->ranks()) return "";
  const std::vector<double> should = BytesPerLink(*topology_, claimed);
  const std::vector<double> does = BytesPerLink(*topology_, counted);
  LinkId differing = kNone;
  for (LinkId id = topology_->link_end(); id-- > 0;) {
    const auto at = static_cast<std::size_t>(id);
    // Sums of parts of bytes are not exact.
    if (std::abs(should[at] - does[at]) < 1e-9 * std::max(1.0, does[at])) continue;
    const bool is_net = topology_->link(id).path == PathClass::kNet;
    if (differing == kNone || is_net || topology_->link(differing).path != PathClass::kNet)
      differing = id;
  }
  if (differing == kNone) return "";
  const auto at = static_cast<std::size_t>(differing);
  return "; link " + topology_->link_name(differing) + " carries " + Rounded(does[at]) +
         " bytes from " + topology_->vertex(topology_->from(differing)).id + " to " +
         topology_->vertex(topology_->to(differing)).id + ", claimed are " + Rounded(should[at]);
}

Status Claims::Check(const Blocks& blocks, const Report& report,
                     const std::vector<Schedule>& schedules) const {
  if (!made_) return Status();
  const Result<std::vector<RankBytes>> transfers = Transfers(blocks);
  if (!transfers.ok()) return transfers.status();
  const std::vector<RankBytes>& claimed = transfers.value();
  std::vector<RankBytes> counted;
  for (const RankBytes& put : report.put)
    if (placement_.node_of(put.from) != placement_.node_of(put.to)) counted.push_back(put);
  const auto before = [](const RankBytes& a, const RankBytes& b) {
    return a.from != b.from ? a.from < b.from : a.to < b.to;
  };
  auto claim = claimed.begin();
  auto put = counted.begin();
  while (claim != claimed.end() || put != counted.end()) {
    const bool is_claimed =
        claim != claimed.end() && (put == counted.end() || !before(*put, *claim));
    const bool is_put = put != counted.end() && (claim == claimed.end() || !before(*claim, *put));
    const auto [from, to, any] = is_claimed ? *claim : *put;
    const std::int64_t should = is_claimed ? (claim++)->bytes : 0;
    const std::int64_t does = is_put ? (put++)->bytes : 0;
    if (should != does)
      return Differ(schedules[static_cast<std::size_t>(from)], to, should, does,
                    DifferingLink(claimed, counted));
  }
  return Status();
}

}  // namespace tidegate::verifier
