#pragma once

#include <array>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "collectives/executor/request.h"
#include "collectives/planned_choice.h"
#include "common/status.h"

namespace tidegate {

/// The plans of one rank of a group: chosen, verified, and kept from call to call. One thread at a
/// time.
class PlanBook {
 public:
  PlanBook(PlanChoice choice, int rank) : choice_(std::move(choice)), rank_(rank) {}

  /// The program for a checked request; valid as long as the book. kInternal when its plan fails
  /// verification (verified_plans.h), and what the choice says where it has none.
  Result<const Schedule*> For(const CollectiveRequest& request);

 private:
  using Key = std::tuple<Collective, int, const Algorithm*>;

  /// A choice made before.
  struct Known {
    PlanRequest asked;
    const Schedule* schedule = nullptr;
  };

  Result<const Schedule*> Choose(const CollectiveRequest& request, const PlanRequest& asked);

  const PlanChoice choice_;
  const int rank_;
  std::map<Key, std::unique_ptr<Schedule>> schedules_;
  std::array<Known, 16> known_;  ///< By a hash of what was asked: the latest.
};

}  // namespace tidegate
