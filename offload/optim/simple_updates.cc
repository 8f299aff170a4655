// The steps of SGD, Adagrad and Lion, for every target.
#include "common/simd/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optim/simple_updates.cc"
#include <hwy/foreach_target.h>
// After the loop over targets.
#include <hwy/highway.h>

#include "offload/optim/simple_rules_inl.h"
#include "offload/optim/updater_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::offload {
namespace HWY_NAMESPACE {

UpdateFunction FindSimpleHere([[maybe_unused]] const Hyperparameters& hyperparameters,
                              [[maybe_unused]] const Layout& layout) {
#if TIDEGATE_OPTIM_VECTORS
  switch (hyperparameters.rule) {
    case Rule::kSgd:
      return StateCount(hyperparameters) != 0
                 ? FindByParameter<Float32States<1>, SgdRule<true>>(layout)
                 : FindByParameter<Float32States<0>, SgdRule<false>>(layout);
    case Rule::kAdagrad:
      return FindByParameter<Float32States<1>, AdagradRule>(layout);
    case Rule::kLion:
      return FindByParameter<Float32States<1>, LionRule>(layout);
    case Rule::kAdamW:
    case Rule::kAdam:
      break;
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

HWY_EXPORT(FindSimpleHere);

UpdateFunction FindSimpleUpdateFor(KernelTarget target, const Hyperparameters& hyperparameters,
                                   const Layout& layout) {
  return ForTarget(HWY_DISPATCH_TABLE(FindSimpleHere), target)(hyperparameters, layout);
}

}  // namespace tidegate::offload

#endif  // HWY_ONCE
