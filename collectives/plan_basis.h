#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "collectives/calibration/data_paths.h"
#include "collectives/planner/measured_table.h"
#include "collectives/planner/planner.h"
#include "collectives/simulator/network.h"
#include "collectives/topology/topology.h"
#include "common/config.h"
#include "common/status.h"

namespace tidegate {

/// A machine and the rates at which it works.
struct MachineModel {
  Topology topology;
  LocalRates rates;
};

/// What a group's plans follow from: the same on all its ranks, because one of them makes it and
/// the others get it.
struct PlanBasis {
  MachineModel declared;  ///< Decides the order of reduction: equal on equal machines, always.
  std::optional<MachineModel> calibrated = {};  ///< Prices; none where calibration is off.
  MeasuredTable measured = {};                  ///< What `tidegate measure` found, if it was run.
  DataPaths paths = {};                         ///< Measured where `calibrated`, else declared.
};

/// Describes this machine for a group of `ranks` ranks, under the TIDEGATE_TOPO_*, _CALIBRATE and
/// _CACHE_DIR of `config`. `members`: global ranks of a group that is not the job's own; empty:
/// rank i is global rank i, and the description is dumped where that is asked for; `ranks_of_job`:
/// global ranks there are, as far as is known. A machine that
/// cannot be looked at is taken for a plain one. Measures on the first call in the first process
/// of a machine. kInvalidArgument for a bad topology file.
Result<PlanBasis> MakePlanBasis(const Config& config, int ranks, std::span<const int> members = {},
                                int ranks_of_job = 0);

/// The planner of groups with that basis, to which it refers; `slot_bytes`: of a stage slot.
/// kInvalidArgument for forced algorithms that the placement does not allow.
Result<Planner> MakePlanner(const PlanBasis& basis, AlgorithmChoices forced,
                            std::size_t slot_bytes);

/// Keeps a measured table for groups of `ranks` ranks that are made on this machine from now on;
/// returns the file. kInvalidArgument where it cannot be kept.
Result<std::string> KeepMeasured(const Config& config, int ranks, const MeasuredTable& table);

/// One line of JSON, which ParsePlanBasis reads back as the same.
std::string FormatPlanBasis(const PlanBasis& basis);
/// kInvalidArgument with the path for text that is none.
Result<PlanBasis> ParsePlanBasis(std::string_view text);

}  // namespace tidegate
