#pragma once

#include <cstddef>
#include <span>

#include "collectives/executor/request.h"
#include "common/inline_vector.h"

namespace tidegate {

/// What an operation consists of: nearly always one, and then nothing is allocated for it.
using Requests = InlineVector<CollectiveRequest, 1>;

inline std::size_t TotalBytes(std::span<const Block> blocks) {
  std::size_t bytes = 0;
  for (const Block& block : blocks) bytes += block.bytes;
  return bytes;
}

}  // namespace tidegate
