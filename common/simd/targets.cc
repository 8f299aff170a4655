#include "common/simd/targets.h"

#include "common/simd/highway_targets.h"
// After the choice of targets.
#include <hwy/highway.h>

#include "common/check.h"

namespace tidegate {

std::vector<KernelTarget> KernelTargets() {
  std::vector<KernelTarget> targets;
  for (KernelTarget left = HWY_TARGETS; left != 0; left &= left - 1)
    targets.push_back(left & -left);
  return targets;
}

bool IsSupported(KernelTarget target) {
  return (hwy::SupportedTargets() & HWY_TARGETS & target) != 0;
}

KernelTarget BestTarget() {
  const KernelTarget supported = hwy::SupportedTargets() & HWY_TARGETS;
  return supported & -supported;
}

std::string_view NameOfTarget(KernelTarget target) { return hwy::TargetName(target); }

void UseKernelTarget(KernelTarget target) {
  hwy::SetSupportedTargetsForTest(0);
  TIDEGATE_CHECK(target == 0 || IsSupported(target));
  hwy::SetSupportedTargetsForTest(target);
}

}  // namespace tidegate
