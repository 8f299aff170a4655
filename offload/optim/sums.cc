// The sums of squares alone, for every target.
#include "common/simd/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optim/sums.cc"
#include <hwy/foreach_target.h>
// After the loop over targets.
#include <hwy/highway.h>

#include "offload/optim/updater_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::offload {
namespace HWY_NAMESPACE {

#if TIDEGATE_OPTIM_VECTORS

template <typename Element>
void SumSquares(const void* gradient, std::size_t first, std::size_t count, float gradient_factor,
                BlockSums* blocks) {
  using Storage = typename Element::Storage;
  const DefaultFloatEnvironment environment;
  const auto* const from = static_cast<const Storage*>(gradient);
  const Floats factor = EveryFloat(gradient_factor);
  const auto add = [factor](const Storage* group, std::size_t count, Sums& sums) HWY_ATTR {
    Floats values[kVectors];
    Element::Load(group, values);
    for (Floats& value : values) value = hn::Mul(value, factor);
    if (count != kGroup) ClearAfter(count, values);
    sums.Add(values);
  };
  const std::size_t end = first + count;
  for (std::size_t block = first; block < end; block += kBlock) {
    const std::size_t block_end = std::min(block + kBlock, end);
    const std::size_t whole_end = block_end - (block_end - block) % kGroup;
    Sums sums;
    for (std::size_t at = block; at < whole_end; at += kGroup) {
      PrefetchAhead(from, at, AheadBytes(2));
      add(from + at, kGroup, sums);
    }
    if (whole_end != block_end) {
      Storage padded[kGroup] = {};
      std::memcpy(padded, from + whole_end, (block_end - whole_end) * sizeof(Storage));
      add(padded, block_end - whole_end, sums);
    }
    *blocks++ = sums.Finish();
  }
}

#endif

SumsFunction FindSumsHere([[maybe_unused]] ElementType gradient) {
#if TIDEGATE_OPTIM_VECTORS
  switch (gradient) {
    case ElementType::kFloat32:
      return SumSquares<Float32Elements>;
    case ElementType::kBFloat16:
      return SumSquares<BFloat16Elements>;
    case ElementType::kFloat16:
      return SumSquares<Float16Elements>;
  }
#endif
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace tidegate::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "common/simd/dispatch.h"
#include "offload/optim/update_targets.h"

namespace tidegate::offload {

HWY_EXPORT(FindSumsHere);

SumsFunction FindSumsFor(KernelTarget target, ElementType gradient) {
  return ForTarget(HWY_DISPATCH_TABLE(FindSumsHere), target)(gradient);
}

}  // namespace tidegate::offload

#endif  // HWY_ONCE
