#pragma once

#include <string>

namespace tidegate {

/// What the engine of this process does and holds, for tidegate.offload.stats(): the threads and
/// the arena of OffloadEngine, and the segments that it shares with other ranks. "{}" if there is
/// no engine yet. Thread-safe.
std::string OffloadStatsJson();

}  // namespace tidegate
