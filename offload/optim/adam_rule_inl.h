// The arithmetic of AdamW and Adam. Compiled once a target by the files that include it through
// hwy/foreach_target.h.
#if defined(TIDEGATE_OPTIM_ADAM_RULE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_OPTIM_ADAM_RULE_INL_H
#undef TIDEGATE_OPTIM_ADAM_RULE_INL_H
#else
#define TIDEGATE_OPTIM_ADAM_RULE_INL_H
#endif

#include <hwy/highway.h>

#include "offload/optim/coefficients.h"
#include "offload/optim/elements_inl.h"

#if TIDEGATE_OPTIM_VECTORS

HWY_BEFORE_NAMESPACE();
namespace tidegate::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// AdamStep() of reference.cc, operation by operation. What rarely differs from a tensor to the
/// next is a branch that the processor foresees, rather than one more function of the step.
template <bool kAmsgrad>
class AdamRule {
 public:
  explicit AdamRule(const Coefficients& c)
      : coupled_(c.l2 != 0),
        from_gradient_(hn::FirstN(DFloats(), c.lerp_from_gradient ? kLanes : 0)),
        l2_(EveryFloat(c.l2)),
        keep_(EveryFloat(c.keep)),
        negative_step_size_(EveryFloat(-c.step_size)),
        lerp_(EveryFloat(c.lerp)),
        beta2_(EveryFloat(c.beta2)),
        gradient_weight2_(EveryFloat(c.gradient_weight2)),
        inverse_root_(EveryFloat(c.inverse_root)),
        eps_(EveryFloat(c.eps)) {}

  HWY_INLINE void Apply(Floats gradient, Floats& parameter, Floats* states) const {
    if (coupled_) gradient = hn::MulAdd(l2_, parameter, gradient);
    const Floats base = hn::IfThenElse(from_gradient_, gradient, states[0]);
    const Floats exp_avg = hn::MulAdd(lerp_, hn::Sub(gradient, states[0]), base);
    const Floats exp_avg_sq =
        hn::MulAdd(hn::Mul(gradient_weight2_, gradient), gradient, hn::Mul(beta2_, states[1]));
    Floats squares = exp_avg_sq;
    if constexpr (kAmsgrad) {
      const auto larger = hn::Or(hn::Lt(states[2], squares), hn::IsNaN(squares));
      squares = hn::IfThenElse(larger, squares, states[2]);
      states[2] = squares;
    }
    const Floats denominator = hn::MulAdd(hn::Sqrt(squares), inverse_root_, eps_);
    const Floats update = hn::Div(exp_avg, denominator);
    parameter = hn::MulAdd(negative_step_size_, update, hn::Mul(keep_, parameter));
    states[0] = exp_avg;
    states[1] = exp_avg_sq;
  }

 private:
  const bool coupled_;
  const hn::Mask<DFloats> from_gradient_;  // All lanes or none.
  const Floats l2_;
  const Floats keep_;
  const Floats negative_step_size_;
  const Floats lerp_;
  const Floats beta2_;
  const Floats gradient_weight2_;
  const Floats inverse_root_;
  const Floats eps_;
};

}  // namespace HWY_NAMESPACE
}  // namespace tidegate::offload
HWY_AFTER_NAMESPACE();

#endif  // TIDEGATE_OPTIM_VECTORS

#endif  // TIDEGATE_OPTIM_ADAM_RULE_INL_H
