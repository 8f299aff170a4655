// The steps of AdamW and Adam with float32 states, for every target.
#include "common/simd/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optim/adam_updates.cc"
#include <hwy/foreach_target.h>
// After the loop over targets.
#include <hwy/highway.h>

#include "offload/optim/adam_rule_inl.h"
#include "offload/optim/updater_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::offload {
namespace HWY_NAMESPACE {

UpdateFunction FindAdamHere([[maybe_unused]] const Hyperparameters& hyperparameters,
                            [[maybe_unused]] const Layout& layout) {
#if TIDEGATE_OPTIM_VECTORS
  if (hyperparameters.amsgrad) return FindByParameter<Float32States<3>, AdamRule<true>>(layout);
  return FindByParameter<Float32States<2>, AdamRule<false>>(layout);
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

HWY_EXPORT(FindAdamHere);

UpdateFunction FindAdamUpdateFor(KernelTarget target, const Hyperparameters& hyperparameters,
                                 const Layout& layout) {
  return ForTarget(HWY_DISPATCH_TABLE(FindAdamHere), target)(hyperparameters, layout);
}

}  // namespace tidegate::offload

#endif  // HWY_ONCE
