#pragma once

#include <cstddef>

#include "collectives/executor/request.h"
#include "common/inline_vector.h"

namespace tidegate {

/// What an operation consists of: nearly always one, and then nothing is allocated for it.
using Requests = InlineVector<CollectiveRequest, 1>;

/// Ranks of a group up to which nothing is allocated for a list that has one entry a rank.
inline constexpr std::size_t kRanksInside = 8;

}  // namespace tidegate
