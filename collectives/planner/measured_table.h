#pragma once

#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include <nlohmann/json_fwd.hpp>

#include "collectives/schedule/schedule.h"
#include "common/json/json_view.h"
#include "common/status.h"

namespace tidegate {

/// Seconds of (collective, algorithm, size class), from running them; empty: nothing measured.
using MeasuredTable = std::map<std::tuple<Collective, std::string, int>, double>;

/// Rows [collective, algorithm, size class, seconds].
nlohmann::json ToJson(const MeasuredTable& table);
/// kInvalidArgument with the path for what is no such row, or absurd. Algorithms that there are no
/// more are left out.
Result<MeasuredTable> ReadMeasuredTable(const JsonView& rows);

/// A file with the table of `ranks` ranks on the machine called `machine`.
std::string FormatMeasuredFile(const std::string& machine, int ranks, const MeasuredTable& table);
/// kInvalidArgument with the path for text that is no such file, or one of another machine.
Result<MeasuredTable> ParseMeasuredFile(std::string_view text, const std::string& machine,
                                        int ranks);

}  // namespace tidegate
