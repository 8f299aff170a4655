#include "offload/optim/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/check.h"
#include "common/simd/float_environment.h"
#include "offload/optim/block8.h"
#include "offload/optim/random_bits.h"
#include "offload/optim/scalar_elements.h"
#include "offload/optim/split_master.h"

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
  // The sign of torch.sign: 0 for a zero of either sign and for a NaN.
  const float up = direction > 0 ? c.step_size : 0;
  const float down = direction < 0 ? c.step_size : 0;
  e.parameter = c.keep * e.parameter - (up - down);
}

/// The value that is updated, by index.
template <ElementType kParameter, Master kMaster>
struct ScalarParameter {
  using Element = ScalarElement<kParameter>;

  static float Load(const TensorOperands& operands, std::size_t index) {
    if constexpr (kMaster == Master::kFloat32)
      return static_cast<const float*>(operands.master)[index];
    if constexpr (kMaster == Master::kSplit)
      return Joined({static_cast<const std::uint16_t*>(operands.parameter)[index],
                     static_cast<const std::uint16_t*>(operands.master)[index]});
    if constexpr (kMaster == Master::kNone) return Element::Load(operands.parameter, index);
  }
  static void Store(const TensorOperands& operands, std::size_t index, float value) {
    if constexpr (kMaster == Master::kSplit) {
      const SplitFloat split = Split(value);
      static_cast<std::uint16_t*>(operands.parameter)[index] = split.upper;
      static_cast<std::uint16_t*>(operands.master)[index] = split.lower;
      return;
    }
    if constexpr (kMaster == Master::kFloat32) static_cast<float*>(operands.master)[index] = value;
    Element::Store(operands.parameter, index, value);
  }
};

/// The states of up to kScaleBlock elements, [state][element]; which come from `first` on.
using StateValues = float[3][kScaleBlock];

template <States kStates>
void LoadStates(const TensorOperands& operands, std::size_t first, std::size_t count,
                StateValues& values) {
  for (int state = 0; state < 3; ++state) {
    const void* const from = operands.states[state];
    for (std::size_t i = 0; i < count && from != nullptr; ++i) {
      if constexpr (kStates == States::kFloat32)
        values[state][i] = ScalarElement<ElementType::kFloat32>::Load(from, first + i);
      if constexpr (kStates == States::kBFloat16)
        values[state][i] = ScalarElement<ElementType::kBFloat16>::Load(from, first + i);
      if constexpr (kStates == States::kBlock8) {
        const std::uint8_t code = static_cast<const std::uint8_t*>(from)[first + i];
        const float scale = operands.scales[state][first / kScaleBlock];
        values[state][i] = state == 0 ? DecodeSigned8(code, scale) : DecodeUnsigned8(code, scale);
      }
    }
  }
}

template <States kStates>
void StoreStates(const TensorOperands& operands, std::size_t first, std::size_t count,
                 const StateValues& values, std::uint64_t seed) {
  const RandomKey key = KeyOfBlock(seed, first / kBlock);
  for (int state = 0; state < 3; ++state) {
    void* const to = operands.states[state];
    if (to == nullptr) continue;
    if constexpr (kStates == States::kBlock8) {
      auto* const codes = static_cast<std::uint8_t*>(to) + first;
      operands.scales[state][first / kScaleBlock] =
          EncodeBlock8(values[state], count, state == 1, key, first % kBlock, codes);
      continue;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t index = first + i;
      const float value = values[state][i];
      if constexpr (kStates == States::kFloat32) static_cast<float*>(to)[index] = value;
      if constexpr (kStates == States::kBFloat16) {
        const std::uint32_t word = RandomWord(key, static_cast<std::uint32_t>(index % kBlock));
        static_cast<std::uint16_t*>(to)[index] =
            state == 1 ? StochasticBFloat16(value, word) : BFloat16FromFloat(value);
      }
    }
  }
}

template <ElementType kGradient, typename Parameter, States kStates>
void ReferenceUpdate(const TensorOperands& operands, std::size_t first, std::size_t count,
                     const Coefficients& c, BlockSums* blocks) {
  const DefaultFloatEnvironment environment;
  const std::size_t end = first + count;
  ReferenceSums sums;
  for (std::size_t at = first; at < end; at += kScaleBlock) {
    const std::size_t size = std::min(kScaleBlock, end - at);
    StateValues states = {};
    LoadStates<kStates>(operands, at, size, states);
    for (std::size_t i = 0; i < size; ++i) {
      StepElement element;
      element.gradient =
          ScalarElement<kGradient>::Load(operands.gradient, at + i) * c.gradient_factor;
      sums.Add((at + i) % kBlock, element.gradient);
      element.parameter = Parameter::Load(operands, at + i);
      for (int state = 0; state < 3; ++state) element.states[state] = states[state][i];
      ReferenceStep(c, element);
      Parameter::Store(operands, at + i, element.parameter);
      for (int state = 0; state < 3; ++state) states[state][i] = element.states[state];
    }
    StoreStates<kStates>(operands, at, size, states, c.seed);
    if ((at + size) % kBlock == 0 || at + size == end) {
      if (blocks != nullptr) *blocks++ = sums.Finish();
      sums = ReferenceSums();
    }
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

template <typename Parameter, States kStates>
UpdateFunction FindByGradient(ElementType gradient) {
  switch (gradient) {
    case ElementType::kFloat32:
      return ReferenceUpdate<ElementType::kFloat32, Parameter, kStates>;
    case ElementType::kBFloat16:
      return ReferenceUpdate<ElementType::kBFloat16, Parameter, kStates>;
    case ElementType::kFloat16:
      return ReferenceUpdate<ElementType::kFloat16, Parameter, kStates>;
  }
  TIDEGATE_CHECK(false);
}

template <typename Parameter>
UpdateFunction FindByStates(const Layout& layout) {
  switch (layout.states) {
    case States::kFloat32:
      return FindByGradient<Parameter, States::kFloat32>(layout.gradient);
    case States::kBFloat16:
      return FindByGradient<Parameter, States::kBFloat16>(layout.gradient);
    case States::kBlock8:
      return FindByGradient<Parameter, States::kBlock8>(layout.gradient);
  }
  TIDEGATE_CHECK(false);
}

template <ElementType kParameter>
UpdateFunction FindByMaster(const Layout& layout) {
  switch (layout.master) {
    case Master::kNone:
      return FindByStates<ScalarParameter<kParameter, Master::kNone>>(layout);
    case Master::kFloat32:
      return FindByStates<ScalarParameter<kParameter, Master::kFloat32>>(layout);
    case Master::kSplit:
      return FindByStates<ScalarParameter<ElementType::kBFloat16, Master::kSplit>>(layout);
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
      return FindByMaster<ElementType::kFloat32>(layout);
    case ElementType::kBFloat16:
      return FindByMaster<ElementType::kBFloat16>(layout);
    case ElementType::kFloat16:
      return FindByMaster<ElementType::kFloat16>(layout);
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
