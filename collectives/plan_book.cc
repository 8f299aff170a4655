#include "collectives/plan_book.h"

#include <algorithm>
#include <string>
#include <utility>

#include "collectives/prepared_call.h"
#include "collectives/verified_plans.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/units.h"

namespace tidegate {

Result<const Schedule*> PlanBook::For(const CollectiveRequest& request) {
  const PlanRequest asked{
      .collective = request.collective,
      .bytes = MessageBytes(request),
      .root = std::max(request.root, 0),
      // The mean of integers is that of their exact sum, which partial sums of their type do not
      // hold.
      .in_one_pass = request.reduce_op == ReduceOp::kAvg && IsInteger(request.dtype),
      .uneven = request.collective == Collective::kAllToAll && !request.even};
  const std::uint64_t hash =
      MixHash(MixHash(kHashSeed, asked.bytes), static_cast<std::uint64_t>(asked.collective));
  Known& known = known_[(hash >> 32) % known_.size()];
  if (known.schedule != nullptr && known.asked == asked) return known.schedule;
  const Result<const Schedule*> schedule = Choose(request, asked);
  if (schedule.ok()) known = {asked, schedule.value()};
  return schedule;
}

Result<const Schedule*> PlanBook::Choose(const CollectiveRequest& request,
                                         const PlanRequest& asked) {
  const Result<const Algorithm*> algorithm = choice_.choose(asked);
  if (!algorithm.ok()) return algorithm.status();
  std::unique_ptr<Schedule>& schedule =
      schedules_[{request.collective, request.root, algorithm.value()}];
  if (schedule == nullptr) {
    const AlgorithmInput input{.rank = rank_,
                               .ranks = choice_.placement.ranks(),
                               .root = asked.root,
                               .placement = &choice_.placement};
    auto made = std::make_unique<Schedule>((*algorithm.value())(input));
    TIDEGATE_RETURN_IF_ERROR(EnsureVerified(*algorithm.value(), input, *made));
    if (LogEnabled(LogLevel::kTrace))
      Log(LogLevel::kTrace, std::string(NameOf(request.collective)) + " of " +
                                FormatBytes(asked.bytes) + " runs " + made->name);
    schedule = std::move(made);
  }
  return schedule.get();
}

}  // namespace tidegate
