// The steps of AdamW with compressed states, for every target.
#include "common/simd/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optim/compressed_updates.cc"
#include <hwy/foreach_target.h>
// After the loop over targets.
#include <hwy/highway.h>

#include "offload/optim/adam_rule_inl.h"
#include "offload/optim/compressed_states_inl.h"
#include "offload/optim/updater_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::offload {
namespace HWY_NAMESPACE {

UpdateFunction FindCompressedHere([[maybe_unused]] const Layout& layout) {
#if TIDEGATE_OPTIM_VECTORS
  if (layout.states == States::kBFloat16)
    return FindByMaster<BFloat16States, AdamRule<false>>(layout);
  return FindByMaster<Block8States, AdamRule<false>>(layout);
#else
  return nullptr;
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace tidegate::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "common/simd/dispatch.h"
#include "offload/optim/update_targets.h"

namespace tidegate::offload {

HWY_EXPORT(FindCompressedHere);

UpdateFunction FindCompressedUpdateFor(KernelTarget target, const Layout& layout) {
  return ForTarget(HWY_DISPATCH_TABLE(FindCompressedHere), target)(layout);
}

}  // namespace tidegate::offload

#endif  // HWY_ONCE
