#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "collectives/algorithms/algorithms.h"
#include "collectives/calibration/data_paths.h"
#include "collectives/planner/choices.h"
#include "collectives/planner/planner.h"
#include "collectives/topology/placement.h"
#include "common/status.h"

namespace tidegate {

/// How a group comes to its algorithms. Equal requests get equal answers on all ranks.
struct PlanChoice {
  /// Valid as long as the function.
  std::function<Result<const Algorithm*>(const PlanRequest& request)> choose;
  Placement placement = Placement::OneNode(1);
  DataPaths paths = {};
};

/// The planner's choice for the machine of `basis` (plan_basis.h), with `forced` in its place where
/// that names one. Groups with the same basis share one planner, so that what one has thought
/// through is known to the next. On one node every reduction that is not forced is one pass over
/// the ranks in order, whatever its size. `slot_bytes`: of a stage slot. Thread-safe; a look-up
/// takes well under a microsecond, a first request of its size class below 1 ms up to 4 ranks on a
/// node and up to a second at 64.
/// kInvalidArgument for text that is no basis of `ranks` ranks.
Result<PlanChoice> PlannedChoice(const std::string& basis, int ranks,
                                 const AlgorithmChoices& forced, std::size_t slot_bytes);

}  // namespace tidegate
