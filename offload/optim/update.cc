#include "offload/optim/update.h"

#include "common/check.h"
#include "common/simd/targets.h"
#include "offload/optim/reference.h"
#include "offload/optim/update_targets.h"

namespace tidegate::offload {

UpdateFunction FindUpdateFor(KernelTarget target, const Hyperparameters& hyperparameters,
                             const Layout& layout) {
  if (layout.states != States::kFloat32) return FindCompressedUpdateFor(target, layout);
  switch (hyperparameters.rule) {
    case Rule::kAdamW:
    case Rule::kAdam:
      return FindAdamUpdateFor(target, hyperparameters, layout);
    case Rule::kSgd:
    case Rule::kAdagrad:
    case Rule::kLion:
      return FindSimpleUpdateFor(target, hyperparameters, layout);
  }
  TIDEGATE_CHECK(false);
}

Result<UpdateFunction> FindUpdate(const Hyperparameters& hyperparameters, const Layout& layout) {
  TIDEGATE_RETURN_IF_ERROR(CheckSupported(hyperparameters, layout));
  const UpdateFunction update = FindUpdateFor(BestTarget(), hyperparameters, layout);
  return update != nullptr ? update : FindReferenceUpdate(hyperparameters, layout);
}

SumsFunction FindSums(ElementType gradient) {
  const SumsFunction sums = FindSumsFor(BestTarget(), gradient);
  return sums != nullptr ? sums : FindReferenceSums(gradient);
}

}  // namespace tidegate::offload
