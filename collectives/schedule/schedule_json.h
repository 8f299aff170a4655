#pragma once

#include <string>
#include <string_view>

#include "collectives/schedule/schedule.h"
#include "common/json/parse_json.h"
#include "common/status.h"

namespace tidegate {

/// The schedule as JSON, one step a line, for tools; keys in one order, so that equal schedules
/// have equal texts. Members that have their defaults are left out. Slices, operands and chunks are
/// the words of ToText:
///
///   {"tidegate_schedule": 1, "collective": "reduce_scatter", "name": "direct", "rank": 1,
///    "ranks": 2, "sub_slots": 1, "parts": 1, "period": 1,
///    "steps": [
///    {"do": "wait", "lag": 1, "peer": 0, "mark": 0, "chunk": "c", "while": "output[0]"},
///    {"do": "reduce", "lag": 1, "dst": "output[0]", "operands": ["stage(0)[0]:0", "input[1]:1"],
///     "while": "output[0]", "has": "c"}]}
std::string ToJson(const Schedule& schedule);

/// Reads what ToJson writes, with members in any order, blanks anywhere and "comment"s. "root" is
/// of rooted collectives alone; "even" is false if left out; "peer" of signal and wait, "all" if
/// left out; "has" is "c" and "lag" 0 if left out. kInvalidArgument with line and column or with
/// the path of the value
/// ("$.steps[3].dst") and what is expected there, also where FindFault finds fault.
Result<Schedule> ParseScheduleJson(std::string_view text, const JsonLimits& limits = {});

}  // namespace tidegate
