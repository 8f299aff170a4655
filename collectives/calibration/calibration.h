#pragma once

#include <string>
#include <string_view>

#include "collectives/calibration/data_paths.h"
#include "collectives/topology/discovery.h"
#include "common/status.h"

namespace tidegate {

/// This machine as far as its rates depend on it: host, processor model, usable processors, version
/// of tidegate. One line.
std::string MachineKey(int usable_cpus, const std::string& root = "/");

/// What is measured of a machine.
struct Calibration {
  MachineRates rates;
  DataPaths paths;

  bool operator==(const Calibration&) const = default;
};

/// Of the machine called `key`: what is in the folder `cache` where it was measured before, else
/// what `measure` finds, which is kept there. A file that cannot be read or written is
/// no error (it is logged): the machine is measured again. Safe against other processes that do the
/// same. An empty `cache` keeps nothing.
Calibration Calibrated(const std::string& cache, const std::string& key, Calibration (*measure)());

/// The file of Calibrated: JSON, docs/planner.md.
std::string FormatCalibration(const std::string& key, const Calibration& calibration);
/// kInvalidArgument with the path in the JSON for what is no calibration of `key`, or absurd.
Result<Calibration> ParseCalibration(std::string_view text, const std::string& key);

}  // namespace tidegate
