#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "collectives/algorithms/algorithms.h"
#include "collectives/executor/request.h"
#include "common/status.h"

namespace tidegate {

/// The plans of one rank of a group: chosen, verified, and kept from call to call. One thread at a
/// time.
class PlanBook {
 public:
  PlanBook(AlgorithmTable algorithms, int rank, int ranks)
      : algorithms_(std::move(algorithms)), rank_(rank), ranks_(ranks) {}

  /// The program for a checked request; valid as long as the book. kInternal when its plan fails
  /// verification (verified_plans.h).
  Result<const Schedule*> For(const CollectiveRequest& request);

 private:
  using Key = std::tuple<Collective, int, const Algorithm*>;

  const AlgorithmTable algorithms_;
  const int rank_;
  const int ranks_;
  std::map<Key, std::unique_ptr<Schedule>> schedules_;
};

}  // namespace tidegate
