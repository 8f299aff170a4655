#pragma once

#include <cstddef>

namespace tidegate {

/// Copies like memcpy with stores that bypass the cache, for output that is larger than the cache
/// and not read again soon. Ordered before later stores of this thread (ends with a store fence).
void StreamingCopy(std::byte* dst, const std::byte* src, std::size_t bytes);

}  // namespace tidegate
