#pragma once

#include <cstddef>
#include <string_view>

#include "collectives/schedule/schedule.h"
#include "common/status.h"

namespace tidegate {

inline constexpr std::size_t kMaxScheduleTextBytes = std::size_t{64} << 20;

/// Reads what ToText writes and nothing else, so that ToText gives the same text again.
/// kInvalidArgument with the line, the word that is wrong and what is expected in its place; also
/// for a well-written schedule that FindFault finds fault with, and for more than
/// kMaxScheduleTextBytes. Time and memory: proportional to the text, whatever it says.
Result<Schedule> ParseScheduleText(std::string_view text);

}  // namespace tidegate
