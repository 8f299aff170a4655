#include "collectives/plan_book.h"

#include <algorithm>
#include <utility>

#include "collectives/prepared_call.h"
#include "collectives/verified_plans.h"
#include "common/check.h"

namespace tidegate {

Result<const Schedule*> PlanBook::For(const CollectiveRequest& request) {
  // The mean of integers is that of their exact sum, which partial sums of their type do not hold.
  static const AlgorithmTable kOnePass = AlgorithmTable::Default();
  const bool exact = request.reduce_op == ReduceOp::kAvg && IsInteger(request.dtype);
  const Algorithm* algorithm =
      (exact ? kOnePass : algorithms_).Choose(request.collective, MessageBytes(request));
  TIDEGATE_CHECK(algorithm != nullptr);
  std::unique_ptr<Schedule>& schedule = schedules_[{request.collective, request.root, algorithm}];
  if (schedule == nullptr) {
    const AlgorithmInput input{
        .rank = rank_, .ranks = ranks_, .root = std::max(request.root, 0), .placement = nullptr};
    auto made = std::make_unique<Schedule>((*algorithm)(input));
    TIDEGATE_RETURN_IF_ERROR(EnsureVerified(*algorithm, input, *made));
    schedule = std::move(made);
  }
  return schedule.get();
}

}  // namespace tidegate
