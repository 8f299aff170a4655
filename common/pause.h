#pragma once

namespace tidegate {

/// Tells the core that its thread spins: saves power and leaves a sibling thread the core's units.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tidegate
