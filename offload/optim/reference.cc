#include "offload/optim/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"
#include "common/simd/float_environment.h"
#include "offload/optim/scalar_elements.h"

namespace tidegate::offload {
namespace {

// std::fma rounds once, whether by an instruction or not; a * b + c never becomes one by itself,
// because contraction is off.

void AdamStep(const Coefficients& c, StepElement& e) {
  if (c.l2 != 0) e.gradient = std::fma(c.l2, e.parameter, e.gradient);
  float& exp_avg = e.states[0];
  float& exp_avg_sq = e.states[1];
  const float base = c.lerp_from_gradient ? e.gradient : exp_avg;
  exp_avg = std::fma(c.lerp, e.gradient - exp_avg, base);
  exp_avg_sq = std::fma(c.gradient_weight2 * e.gradient, e.gradient, c.beta2 * exp_avg_sq);
  float squares = exp_avg_sq;
  if (c.amsgrad) {
    float& largest = e.states[2];
    if (largest < squares || std::isnan(squares)) largest = squares;
    squares = largest;
  }
  const float denominator = std::fma(std::sqrt(squares), c.inverse_root, c.eps);
  e.parameter = std::fma(-c.step_size, exp_avg / denominator, c.keep * e.parameter);
}

/// `states` is 0 without momentum, where the buffer is neither read nor written.
void SgdStep(const Coefficients& c, StepElement& e) {
  if (c.l2 != 0) e.gradient = std::fma(c.l2, e.parameter, e.gradient);
  float update = e.gradient;
  if (c.momentum != 0) {
    float& buffer = e.states[0];
    buffer = c.first_step ? e.gradient : std::fma(c.momentum, buffer, c.undamped * e.gradient);
    update = c.nesterov ? std::fma(c.momentum, buffer, e.gradient) : buffer;
  }
  e.parameter = std::fma(-c.step_size, update, e.parameter);
}

void AdagradStep(const Coefficients& c, StepElement& e) {
  if (c.l2 != 0) e.gradient = std::fma(c.l2, e.parameter, e.gradient);
  float& sum = e.states[0];
  sum = std::fma(e.gradient, e.gradient, sum);
  e.parameter = std::fma(-c.step_size, e.gradient / (std::sqrt(sum) + c.eps), e.parameter);
}

void LionStep(const Coefficients& c, StepElement& e) {
  float& exp_avg = e.states[0];
  const float direction = std::fma(c.gradient_weight1, e.gradient, c.beta1 * exp_avg);
  exp_avg = std::fma(c.gradient_weight2, e.gradient, c.beta2 * exp_avg);
  // As torch.sign: 0 of a zero of either sign and of a NaN.
  const float sign = static_cast<float>((direction > 0) - (direction < 0));
  e.parameter = std::fma(-c.step_size, sign, c.keep * e.parameter);
}

/// The master, or what stands for it, by index.
template <ElementType kParameter, Master kMaster>
struct ScalarParameter {
  using Element = ScalarElement<kParameter>;
  static float Load(const TensorOperands& operands, std::size_t index) {
    if constexpr (kMaster == Master::kFloat32)
      return static_cast<const float*>(operands.master)[index];
    return Element::Load(operands.parameter, index);
  }
  static void Store(const TensorOperands& operands, std::size_t index, float value) {
    if constexpr (kMaster == Master::kFloat32) static_cast<float*>(operands.master)[index] = value;
    Element::Store(operands.parameter, index, value);
  }
};

template <ElementType kGradient, typename Parameter>
void ReferenceUpdate(const TensorOperands& operands, std::size_t first, std::size_t count,
                     const Coefficients& c, BlockSums* blocks) {
  const DefaultFloatEnvironment environment;
  for (std::size_t block = first; block < first + count; block += kBlock) {
    const std::size_t end = std::min(block + kBlock, first + count);
    ReferenceSums sums;
    for (std::size_t i = block; i < end; ++i) {
      StepElement element = {};
      element.gradient = ScalarElement<kGradient>::Load(operands.gradient, i) * c.gradient_factor;
      sums.Add(i - block, element.gradient);
      element.parameter = Parameter::Load(operands, i);
      for (int state = 0; state < 3; ++state)
        if (operands.states[state] != nullptr)
          element.states[state] = static_cast<const float*>(operands.states[state])[i];
      ReferenceStep(c, element);
      Parameter::Store(operands, i, element.parameter);
      for (int state = 0; state < 3; ++state)
        if (operands.states[state] != nullptr)
          static_cast<float*>(operands.states[state])[i] = element.states[state];
    }
    if (blocks != nullptr) *blocks++ = sums.Finish();
  }
}

template <ElementType kGradient>
void SumsOfReference(const void* gradient, std::size_t first, std::size_t count, float factor,
                     BlockSums* blocks) {
  const DefaultFloatEnvironment environment;
  for (std::size_t block = first; block < first + count; block += kBlock) {
    const std::size_t end = std::min(block + kBlock, first + count);
    ReferenceSums sums;
    for (std::size_t i = block; i < end; ++i)
      sums.Add(i - block, ScalarElement<kGradient>::Load(gradient, i) * factor);
    *blocks++ = sums.Finish();
  }
}

template <typename Parameter>
UpdateFunction FindByGradient(ElementType gradient) {
  switch (gradient) {
    case ElementType::kFloat32:
      return ReferenceUpdate<ElementType::kFloat32, Parameter>;
    case ElementType::kBFloat16:
      return ReferenceUpdate<ElementType::kBFloat16, Parameter>;
    case ElementType::kFloat16:
      return ReferenceUpdate<ElementType::kFloat16, Parameter>;
  }
  TIDEGATE_CHECK(false);
}

}  // namespace

void ReferenceStep(const Coefficients& c, StepElement& element) {
  switch (c.rule) {
    case Rule::kAdamW:
    case Rule::kAdam:
      return AdamStep(c, element);
    case Rule::kSgd:
      return SgdStep(c, element);
    case Rule::kAdagrad:
      return AdagradStep(c, element);
    case Rule::kLion:
      return LionStep(c, element);
  }
}

void ReferenceSums::Add(std::size_t index_in_block, float gradient) {
  const double wide = gradient;
  lanes_[index_in_block % kLanes] += wide * wide;  // The product of two floats is exact.
}

BlockSums ReferenceSums::Finish() const {
  double lanes[kLanes];
  std::copy(std::begin(lanes_), std::end(lanes_), lanes);
  for (std::size_t half = kLanes / 2; half != 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  // Of all NaNs one, whatever instructions made it.
  return {std::isnan(lanes[0]) ? std::numeric_limits<double>::quiet_NaN() : lanes[0]};
}

UpdateFunction FindReferenceUpdate(const Hyperparameters& hyperparameters, const Layout& layout) {
  TIDEGATE_CHECK(CheckSupported(hyperparameters, layout).ok());
  switch (layout.parameter) {
    case ElementType::kFloat32:
      return FindByGradient<ScalarParameter<ElementType::kFloat32, Master::kNone>>(layout.gradient);
    case ElementType::kBFloat16:
      if (layout.master == Master::kNone)
        return FindByGradient<ScalarParameter<ElementType::kBFloat16, Master::kNone>>(
            layout.gradient);
      return FindByGradient<ScalarParameter<ElementType::kBFloat16, Master::kFloat32>>(
          layout.gradient);
    case ElementType::kFloat16:
      if (layout.master == Master::kNone)
        return FindByGradient<ScalarParameter<ElementType::kFloat16, Master::kNone>>(
            layout.gradient);
      return FindByGradient<ScalarParameter<ElementType::kFloat16, Master::kFloat32>>(
          layout.gradient);
  }
  TIDEGATE_CHECK(false);
}

SumsFunction FindReferenceSums(ElementType gradient) {
  switch (gradient) {
    case ElementType::kFloat32:
      return SumsOfReference<ElementType::kFloat32>;
    case ElementType::kBFloat16:
      return SumsOfReference<ElementType::kBFloat16>;
    case ElementType::kFloat16:
      return SumsOfReference<ElementType::kFloat16>;
  }
  TIDEGATE_CHECK(false);
}

}  // namespace tidegate::offload
