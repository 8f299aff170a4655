#pragma once

#include <cstdint>
#include <string>

#include "collectives/schedule/schedule.h"
#include "common/status.h"

namespace tidegate::verifier {

/// "all_gather ring rank 2".
std::string Program(const Schedule& schedule);
/// The line of ToText for the step, with its number.
std::string TextOf(const Schedule& schedule, std::size_t step);
/// Block i of `slice`: "stage(3)[4]".
std::string TextOf(const Slice& slice, int i);

/// kInvalidArgument: "<program>, step <line>[, chunk <c>]: <what>".
Status Reject(const Schedule& schedule, std::size_t step, const std::string& what,
              std::int64_t chunk = -1);

}  // namespace tidegate::verifier
