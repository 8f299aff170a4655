#pragma once

#include <map>
#include <string>

#include "collectives/admission/limits.h"
#include "common/config.h"
#include "common/status.h"

namespace tidegate {

/// Limits by the names of the TIDEGATE_AG_* settings, in their syntax; "" for the default.
using LimitTexts = std::map<std::string, std::string>;

/// What the TIDEGATE_AG_* settings of `config` say. kInvalidArgument for a burst without a rate and
/// for less than a chunk a second.
Result<AdmissionLimits> LimitsOf(const Config& config);

/// The same for `texts` in a process with `config`, of whose own TIDEGATE_AG_* none counts. Also
/// kInvalidArgument for what those variables would not take.
Result<AdmissionLimits> LimitsOf(const LimitTexts& texts, const Config& config);

}  // namespace tidegate
