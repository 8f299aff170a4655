#pragma once

#include <map>
#include <string>
#include <string_view>

#include "collectives/algorithms/algorithms.h"
#include "collectives/topology/placement.h"
#include "common/status.h"

namespace tidegate {

/// Algorithms that a user has asked for, by collective: TIDEGATE_ALGO.
using AlgorithmChoices = std::map<Collective, std::string>;

/// Reads "ag:ring,rs:column_bruck": collectives by their names or as ag, rs, ar, bc, red, ga, sc,
/// a2a. Empty text: no choices. kInvalidArgument for anything else, naming the word, and what is
/// possible in its place.
Result<AlgorithmChoices> ParseAlgorithmChoices(std::string_view text);

/// kInvalidArgument unless every choice can be run among ranks so placed; names those that can.
Status CheckChoices(const AlgorithmChoices& choices, const Placement& placement);

/// "direct, ring, bruck": what can be run.
std::string PossibleAlgorithms(Collective collective, const Placement& placement);

}  // namespace tidegate
