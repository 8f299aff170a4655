#pragma once

#include <string>
#include <string_view>

#include "collectives/topology/discovery.h"
#include "common/status.h"

namespace tidegate {

/// This machine as far as its rates depend on it: host, processor model, usable processors, version
/// of tidegate. One line.
std::string MachineKey(int usable_cpus, const std::string& root = "/");

/// Rates of the machine called `key`: those in the folder `cache` where they were measured before,
/// else those that `measure` finds, which are kept there. A file that cannot be read or written is
/// no error (it is logged): the machine is measured again. Safe against other processes that do the
/// same. An empty `cache` keeps nothing.
MachineRates CalibratedRates(const std::string& cache, const std::string& key,
                             MachineRates (*measure)());

/// The file of CalibratedRates: JSON, docs/planner.md.
std::string FormatCalibration(const std::string& key, const MachineRates& rates);
/// kInvalidArgument with the path in the JSON for what is no calibration of `key`, or absurd.
Result<MachineRates> ParseCalibration(std::string_view text, const std::string& key);

}  // namespace tidegate
