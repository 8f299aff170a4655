#pragma once

namespace tidegate {

/// Whether the calling thread should give up waiting (a signal arrived): what SetInterruptCheck
/// installed says so. Cheap enough to ask ten times a second, not more.
bool Interrupted();

}  // namespace tidegate
