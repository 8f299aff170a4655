#pragma once

#include "collectives/executor/request.h"
#include "common/inline_vector.h"

namespace tidegate {

/// What an operation consists of: nearly always one, and then nothing is allocated for it.
using Requests = InlineVector<CollectiveRequest, 1>;

}  // namespace tidegate
