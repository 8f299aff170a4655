#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tidegate {

/// While alive, this thread rounds to nearest even and keeps subnormals, whatever its caller chose
/// (torch.set_flush_denormal acts on the calling thread, where synchronous collectives and steps of
/// an optimizer run): the result of a kernel must not depend on the thread that computes it.
class DefaultFloatEnvironment {
 public:
#if defined(__x86_64__)
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kStickyFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultFloatEnvironment() {
    if ((saved_ & ~kStickyFlags) != kDefault) _mm_setcsr(saved_);
  }
#else
  DefaultFloatEnvironment() {}
  ~DefaultFloatEnvironment() {}
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

#if defined(__x86_64__)
 private:
  static constexpr unsigned kStickyFlags = 0x3f;
  static constexpr unsigned kDefault = 0x1f80;  // Exceptions masked, to nearest, no FTZ, no DAZ.
  const unsigned saved_;
#endif
};

}  // namespace tidegate
