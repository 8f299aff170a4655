// The arithmetic of SGD, Adagrad and Lion. Compiled once a target by the files that include it
// through hwy/foreach_target.h.
#if defined(TIDEGATE_OPTIM_SIMPLE_RULES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_OPTIM_SIMPLE_RULES_INL_H
#undef TIDEGATE_OPTIM_SIMPLE_RULES_INL_H
#else
#define TIDEGATE_OPTIM_SIMPLE_RULES_INL_H
#endif

#include <hwy/highway.h>

#include "offload/optim/coefficients.h"
#include "offload/optim/elements_inl.h"

#if TIDEGATE_OPTIM_VECTORS

HWY_BEFORE_NAMESPACE();
namespace tidegate::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The functions of reference.cc, operation by operation.

/// SgdStep().
template <bool kMomentum>
class SgdRule {
 public:
  explicit SgdRule(const Coefficients& c)
      : coupled_(c.l2 != 0),
        first_step_(c.first_step),
        nesterov_(c.nesterov),
        l2_(EveryFloat(c.l2)),
        momentum_(EveryFloat(c.momentum)),
        undamped_(EveryFloat(c.undamped)),
        negative_step_size_(EveryFloat(-c.step_size)) {}

  HWY_INLINE void Apply(Floats gradient, Floats& parameter, Floats* states) const {
    if (coupled_) gradient = hn::MulAdd(l2_, parameter, gradient);
    Floats update = gradient;
    if constexpr (kMomentum) {
      const Floats averaged = hn::MulAdd(momentum_, states[0], hn::Mul(undamped_, gradient));
      const Floats buffer = first_step_ ? gradient : averaged;
      update = nesterov_ ? hn::MulAdd(momentum_, buffer, gradient) : buffer;
      states[0] = buffer;
    }
    parameter = hn::MulAdd(negative_step_size_, update, parameter);
  }

 private:
  const bool coupled_;
  const bool first_step_;
  const bool nesterov_;
  const Floats l2_;
  const Floats momentum_;
  const Floats undamped_;
  const Floats negative_step_size_;
};

/// AdagradStep().
class AdagradRule {
 public:
  explicit AdagradRule(const Coefficients& c)
      : coupled_(c.l2 != 0),
        l2_(EveryFloat(c.l2)),
        negative_step_size_(EveryFloat(-c.step_size)),
        eps_(EveryFloat(c.eps)) {}

  HWY_INLINE void Apply(Floats gradient, Floats& parameter, Floats* states) const {
    if (coupled_) gradient = hn::MulAdd(l2_, parameter, gradient);
    states[0] = hn::MulAdd(gradient, gradient, states[0]);
    const Floats denominator = hn::Add(hn::Sqrt(states[0]), eps_);
    parameter = hn::MulAdd(negative_step_size_, hn::Div(gradient, denominator), parameter);
  }

 private:
  const bool coupled_;
  const Floats l2_;
  const Floats negative_step_size_;
  const Floats eps_;
};

/// LionStep().
class LionRule {
 public:
  explicit LionRule(const Coefficients& c)
      : keep_(EveryFloat(c.keep)),
        step_size_(EveryFloat(c.step_size)),
        beta1_(EveryFloat(c.beta1)),
        gradient_weight1_(EveryFloat(c.gradient_weight1)),
        beta2_(EveryFloat(c.beta2)),
        gradient_weight2_(EveryFloat(c.gradient_weight2)) {}

  HWY_INLINE void Apply(Floats gradient, Floats& parameter, Floats* states) const {
    const Floats zero = hn::Zero(DFloats());
    const Floats direction = hn::MulAdd(gradient_weight1_, gradient, hn::Mul(beta1_, states[0]));
    states[0] = hn::MulAdd(gradient_weight2_, gradient, hn::Mul(beta2_, states[0]));
    const Floats up = hn::IfThenElseZero(hn::Gt(direction, zero), step_size_);
    const Floats down = hn::IfThenElseZero(hn::Lt(direction, zero), step_size_);
    parameter = hn::Sub(hn::Mul(keep_, parameter), hn::Sub(up, down));
  }

 private:
  const Floats keep_;
  const Floats step_size_;
  const Floats beta1_;
  const Floats gradient_weight1_;
  const Floats beta2_;
  const Floats gradient_weight2_;
};

}  // namespace HWY_NAMESPACE
}  // namespace tidegate::offload
HWY_AFTER_NAMESPACE();

#endif  // TIDEGATE_OPTIM_VECTORS

#endif  // TIDEGATE_OPTIM_SIMPLE_RULES_INL_H
