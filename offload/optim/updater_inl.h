// The loop over blocks and groups that every step shares. Compiled once a target by the files that
// include it through hwy/foreach_target.h.
#if defined(TIDEGATE_OPTIM_UPDATER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_OPTIM_UPDATER_INL_H
#undef TIDEGATE_OPTIM_UPDATER_INL_H
#else
#define TIDEGATE_OPTIM_UPDATER_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/simd/float_environment.h"
#include "offload/optim/elements_inl.h"
#include "offload/optim/update.h"

#if TIDEGATE_OPTIM_VECTORS

HWY_BEFORE_NAMESPACE();
namespace tidegate::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The lanes of ReferenceSums.
class Sums {
 public:
  Sums() {
    for (Doubles& lanes : lanes_) lanes = hn::Zero(DDoubles());
  }
  HWY_INLINE void Add(const Floats (&gradients)[kVectors]) {
    for (int i = 0; i < kVectors; ++i) {
      Add(hn::LowerHalf(gradients[i]), lanes_[2 * i]);
      Add(hn::UpperHalf(DHalf(), gradients[i]), lanes_[2 * i + 1]);
    }
  }
  BlockSums Finish() const {
    double lanes[kGroup];
    for (int i = 0; i < 2 * kVectors; ++i)
      hn::StoreU(lanes_[i], DDoubles(), lanes + i * hn::MaxLanes(DDoubles()));
    for (std::size_t half = kGroup / 2; half != 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return {std::isnan(lanes[0]) ? std::numeric_limits<double>::quiet_NaN() : lanes[0]};
  }

 private:
  using DDoubles = hn::Repartition<double, DFloats>;
  using DHalf = hn::Half<DFloats>;
  using Doubles = hn::Vec<DDoubles>;

  static HWY_INLINE void Add(hn::Vec<DHalf> gradients, Doubles& lanes) {
    const Doubles wide = hn::PromoteTo(DDoubles(), gradients);
    lanes = hn::MulAdd(wide, wide, lanes);  // As exact a product as that of the reference.
  }

  Doubles lanes_[2 * kVectors];
};

/// Makes those after the first `count` zero, which a factor that is not finite does not leave zero.
HWY_INLINE void ClearAfter(std::size_t count, Floats (&gradients)[kVectors]) {
  for (int i = 0; i < kVectors; ++i) {
    const std::size_t before = i * kLanes;
    const std::size_t here = count < before ? 0 : std::min(count - before, kLanes);
    gradients[i] = hn::IfThenElseZero(hn::FirstN(DFloats(), here), gradients[i]);
  }
}

/// `Gradient` is an element type, `Parameter` and `States` are policies of elements_inl.h, and
/// `Rule::Apply` turns a vector each of gradient, parameter and states into new ones.
template <typename Gradient, typename Parameter, typename States, typename Rule>
class Updater {
 public:
  static void Run(const TensorOperands& operands, std::size_t first, std::size_t count,
                  const Coefficients& c, BlockSums* blocks) {
    const DefaultFloatEnvironment environment;
    const Updater updater(operands, c);
    const std::size_t end = first + count;
    typename States::Context context;
    for (std::size_t block = first; block < end; block += kBlock) {
      const std::size_t block_end = std::min(block + kBlock, end);
      Sums sums;
      for (std::size_t stretch = block; stretch < block_end; stretch += States::kStretch) {
        const std::size_t stretch_end = std::min(stretch + States::kStretch, block_end);
        const std::size_t whole_end = stretch_end - (stretch_end - stretch) % kGroup;
        updater.states_.Begin(stretch, c.seed, context);
        for (std::size_t at = stretch; at < whole_end; at += kGroup)
          updater.template StepAt<false>(at, at, kGroup, context, sums);
        if (whole_end != stretch_end) {
          Sums with_tail = sums;
          StepAtTail(operands, whole_end, stretch_end - whole_end, c, context, with_tail);
          sums = with_tail;
        }
        updater.states_.End(stretch, stretch_end - stretch, context);
      }
      if (blocks != nullptr) *blocks++ = sums.Finish();
    }
    // Streaming stores are not ordered by the release store that announces the result.
    if constexpr (Parameter::kMayStream) hwy::FlushStream();
  }

 private:
  using GradientStorage = typename Gradient::Storage;
  using ParameterStorage = typename Parameter::Storage;
  static constexpr int kStates = States::kCount;
  static constexpr std::size_t kAhead = AheadBytes(2 + kStates);

  Updater(const TensorOperands& operands, const Coefficients& c)
      : gradient_(static_cast<const GradientStorage*>(operands.gradient)),
        parameter_(operands),
        states_(operands),
        rule_(c),
        factor_(EveryFloat(c.gradient_factor)) {}

  /// The group at `at` of the operands, which is at `index` in the tensor. `count` is kGroup, or
  /// less where kPartial.
  template <bool kPartial>
  HWY_INLINE void StepAt(std::size_t at, std::size_t index, std::size_t count,
                         typename States::Context& context, Sums& sums) const {
    PrefetchAhead(gradient_, at, kAhead);
    parameter_.Prefetch(at, kAhead);
    states_.Prefetch(at, kAhead);
    Floats gradient[kVectors];
    Floats parameter[kVectors];
    Floats states[kStates + 1][kVectors];
    Gradient::Load(gradient_ + at, gradient);
    parameter_.Load(at, parameter);
    states_.Load(at, context, states);
    for (Floats& v : gradient) v = hn::Mul(v, factor_);
    if constexpr (kPartial) ClearAfter(count, gradient);
    sums.Add(gradient);
    for (int i = 0; i < kVectors; ++i) {
      Floats here[kStates + 1];
      for (int state = 0; state < kStates; ++state) here[state] = states[state][i];
      rule_.Apply(gradient[i], parameter[i], here);
      for (int state = 0; state < kStates; ++state) states[state][i] = here[state];
    }
    parameter_.Store(parameter, at);
    states_.Store(states, at, index, context);
  }

  /// The last few elements by way of a whole group, whose other elements are zero. Not inlined, to
  /// keep the loop above small.
  static HWY_NOINLINE void StepAtTail(const TensorOperands& operands, std::size_t at,
                                      std::size_t count, const Coefficients& c,
                                      typename States::Context& context, Sums& sums) {
    struct Padded {
      alignas(64) std::byte bytes[kGroup * sizeof(float)] = {};
    };
    const auto offset = [at](auto* stream, std::size_t size) {
      return static_cast<std::byte*>(stream) + at * size;
    };
    Padded gradient;
    Padded parameter;
    Padded master;
    Padded states[3];
    TensorOperands padded;
    padded.stream_parameter = false;
    padded.count = kGroup;
    std::memcpy(gradient.bytes, static_cast<const GradientStorage*>(operands.gradient) + at,
                count * sizeof(GradientStorage));
    padded.gradient = gradient.bytes;
    const auto read = [&](Padded& to, void* stream, std::size_t size) {
      std::memcpy(to.bytes, offset(stream, size), count * size);
      return static_cast<void*>(to.bytes);
    };
    padded.parameter = read(parameter, operands.parameter, sizeof(ParameterStorage));
    if (Parameter::kMasterSize != 0)
      padded.master = read(master, operands.master, Parameter::kMasterSize);
    for (int i = 0; i < kStates; ++i)
      padded.states[i] = read(states[i], operands.states[i], States::kSize);
    Updater(padded, c).template StepAt<true>(0, at, count, context, sums);
    const auto write = [&](const Padded& from, void* stream, std::size_t size) {
      std::memcpy(offset(stream, size), from.bytes, count * size);
    };
    write(parameter, operands.parameter, sizeof(ParameterStorage));
    if (Parameter::kMasterSize != 0) write(master, operands.master, Parameter::kMasterSize);
    for (int i = 0; i < kStates; ++i) write(states[i], operands.states[i], States::kSize);
  }

  const GradientStorage* const gradient_;
  const Parameter parameter_;
  const States states_;
  const Rule rule_;
  const Floats factor_;
};

/// The step of a gradient of any type that the parameter's allows; null where it does not.
template <typename Parameter, typename States, typename Rule>
UpdateFunction FindByGradient(ElementType gradient) {
  constexpr bool kWide = std::is_same_v<Parameter, InPlace<Float32Elements>>;
  constexpr bool kBFloat16 = kWide || std::is_same_v<typename Parameter::Element, BFloat16Elements>;
  constexpr bool kFloat16 = kWide || std::is_same_v<typename Parameter::Element, Float16Elements>;
  switch (gradient) {
    case ElementType::kFloat32:
      return Updater<Float32Elements, Parameter, States, Rule>::Run;
    case ElementType::kBFloat16:
      if constexpr (kBFloat16) return Updater<BFloat16Elements, Parameter, States, Rule>::Run;
      break;
    case ElementType::kFloat16:
      if constexpr (kFloat16) return Updater<Float16Elements, Parameter, States, Rule>::Run;
      break;
  }
  return nullptr;
}

/// The same for a parameter of 16 bits with a master, and for one of float32.
template <typename States, typename Rule>
UpdateFunction FindByMaster(const Layout& layout) {
  if (layout.master == Master::kSplit)
    return FindByGradient<SplitMaster, States, Rule>(layout.gradient);
  switch (layout.parameter) {
    case ElementType::kFloat32:
      return FindByGradient<InPlace<Float32Elements>, States, Rule>(layout.gradient);
    case ElementType::kBFloat16:
      return FindByGradient<WithMaster<BFloat16Elements>, States, Rule>(layout.gradient);
    case ElementType::kFloat16:
      return FindByGradient<WithMaster<Float16Elements>, States, Rule>(layout.gradient);
  }
  return nullptr;
}

/// The same for any parameter.
template <typename States, typename Rule>
UpdateFunction FindByParameter(const Layout& layout) {
  if (layout.master == Master::kNone && layout.parameter == ElementType::kBFloat16)
    return FindByGradient<InPlace<BFloat16Elements>, States, Rule>(layout.gradient);
  if (layout.master == Master::kNone && layout.parameter == ElementType::kFloat16)
    return FindByGradient<InPlace<Float16Elements>, States, Rule>(layout.gradient);
  return FindByMaster<States, Rule>(layout);
}

}  // namespace HWY_NAMESPACE
}  // namespace tidegate::offload
HWY_AFTER_NAMESPACE();

#endif  // TIDEGATE_OPTIM_VECTORS

#endif  // TIDEGATE_OPTIM_UPDATER_INL_H
