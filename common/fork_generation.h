#pragma once

#include <cstdint>

namespace tidegate {

/// Changes in a forked process: whoever remembers another number belongs to an ancestor.
/// Thread-safe.
std::uint64_t ForkGeneration();

/// Has `forget` called in each process forked from this one, before any other code of it runs.
void OnForkInChild(void (*forget)());

}  // namespace tidegate
