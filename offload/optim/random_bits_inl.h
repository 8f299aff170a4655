// The random bits of stochastic rounding, a vector of them. Compiled once a target by the files
// that include it through hwy/foreach_target.h.
#if defined(TIDEGATE_OPTIM_RANDOM_BITS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_OPTIM_RANDOM_BITS_INL_H
#undef TIDEGATE_OPTIM_RANDOM_BITS_INL_H
#else
#define TIDEGATE_OPTIM_RANDOM_BITS_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "offload/optim/elements_inl.h"
#include "offload/optim/random_bits.h"

#if TIDEGATE_OPTIM_VECTORS

HWY_BEFORE_NAMESPACE();
namespace tidegate::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// RandomWord(): of words of the Weyl sequence, with the upper half of the key.
HWY_INLINE Bits Scrambled(Bits word, std::uint32_t high) {
  word = hn::Mul(hn::Xor(word, hn::ShiftRight<16>(word)), Every(0x85ebca6b));
  word = hn::Add(hn::Xor(word, hn::ShiftRight<13>(word)), Every(high));
  word = hn::Mul(word, Every(0xc2b2ae35));
  return hn::Xor(word, hn::ShiftRight<16>(word));
}

}  // namespace HWY_NAMESPACE
}  // namespace tidegate::offload
HWY_AFTER_NAMESPACE();

#endif  // TIDEGATE_OPTIM_VECTORS

#endif  // TIDEGATE_OPTIM_RANDOM_BITS_INL_H
