#include "backend/offload_step.h"

#include <cmath>
#include <span>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "backend/gil.h"
#include "backend/offload_engine.h"

namespace tidegate {
namespace {

std::string GradientOf(std::size_t place) {
  return c10::str("the gradient of parameter ", place, " of its group ");
}

void Refuse(std::size_t place, const std::string& what) {
  CheckOffload({StatusCode::kInvalidArgument, GradientOf(place) + what});
}

/// TypeError, naming `place`, unless a parameter of `parameter` may have a gradient of `gradient`.
offload::ElementType GradientType(std::size_t place, at::ScalarType gradient,
                                  at::ScalarType parameter) {
  const auto type = ElementTypeOf(gradient);
  if (!type)
    C10_THROW_ERROR(TypeError, c10::str(GradientOf(place), "has the dtype ", gradient,
                                        "; offered are float32, bfloat16 and float16"));
  if (parameter != at::kFloat && gradient != parameter && gradient != at::kFloat)
    C10_THROW_ERROR(TypeError,
                    c10::str(GradientOf(place), "has the dtype ", gradient,
                             "; that of a parameter of ", parameter, " has its dtype or float32"));
  return *type;
}

/// A seed of each tensor: the finaliser of SplitMix64 (Steele et al., OOPSLA 2014).
std::uint64_t SeedOf(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t bits = seed + (stream + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

/// `gradient` with its elements in memory in the order of the parameter's.
at::Tensor InOrderOf(const OffloadParameter& record, const at::Tensor& given) {
  const at::Tensor& parameter = record.parameter();
  at::Tensor gradient =
      given._is_zerotensor() ? at::zeros(given.sizes(), given.options()) : given.resolve_neg();
  CheckStorage(gradient, "gradients");
  if (gradient.is_contiguous() && parameter.is_contiguous()) return gradient;
  if (!parameter.is_non_overlapping_and_dense()) return gradient.contiguous();
  if (gradient.strides() == parameter.strides()) return gradient;
  return at::empty_strided(parameter.sizes(), parameter.strides(), gradient.options())
      .copy_(gradient);
}

std::span<double> Doubles(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<double>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

OffloadStep::OffloadStep() : runner_(OffloadEngine::OfThisProcess().pool()) {}

std::vector<std::size_t> OffloadStep::Stale(
    const std::vector<std::shared_ptr<OffloadParameter>>& records,
    const std::vector<at::Tensor>& parameters, int state_count) {
  TORCH_CHECK_VALUE(records.size() == parameters.size(), records.size(), " records and ",
                    parameters.size(), " parameters");
  std::vector<std::size_t> stale;
  for (std::size_t place = 0; place < records.size(); ++place) {
    seen_.Add(parameters[place]);
    const bool serves =
        records[place] != nullptr && records[place]->Serves(parameters[place], state_count);
    if (!serves) stale.push_back(place);
  }
  return stale;
}

void OffloadStep::Add(const offload::Hyperparameters& hyperparameters,
                      std::vector<std::shared_ptr<OffloadParameter>> parameters,
                      const std::vector<at::Tensor>& gradients,
                      const std::vector<std::size_t>& places) {
  CheckOffload(CheckHyperparameters(hyperparameters));
  TORCH_CHECK_VALUE(parameters.size() == gradients.size(), parameters.size(), " parameters and ",
                    gradients.size(), " gradients");
  TORCH_CHECK_VALUE(places.empty() || places.size() == parameters.size(), places.size(),
                    " places of ", parameters.size(), " parameters");
  groups_.push_back(hyperparameters);
  std::optional<offload::Layout> layout;  // Of the one before, whose functions are at hand.
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    OffloadParameter& parameter = *parameters[index];
    const at::Tensor& gradient = gradients[index];
    const std::size_t place = places.empty() ? index : places[index];
    seen_.Add(gradient);
    parameter.AddTo(seen_);
    if (gradient.layout() != at::kStrided)
      Refuse(place, c10::str("has the layout ", gradient.layout(),
                             "; sparse gradients need an optimizer of torch.optim"));
    if (!gradient.device().is_cpu())
      Refuse(place, c10::str("is on ", gradient.device(), " and its parameter on the CPU"));
    if (gradient.sizes() != parameter.parameter().sizes())
      Refuse(place, c10::str("has the shape ", gradient.sizes(), ", the parameter ",
                             parameter.parameter().sizes()));
    const offload::ElementType type =
        GradientType(place, gradient.scalar_type(), parameter.parameter().scalar_type());
    const offload::Layout needed = parameter.LayoutWith(type);
    offload::StepTensor tensor;
    if (layout == needed) {
      tensor = tensors_.back();
    } else {
      const auto found = FindUpdate(hyperparameters, needed);
      CheckOffload(found.status());
      tensor.update = found.value();
      tensor.sums = offload::FindSums(type);
      layout = needed;
    }
    tensor.operands = {};
    tensor.operands.count = static_cast<std::size_t>(parameter.stepped().numel());
    tensor.first = parameter.part() ? static_cast<std::size_t>(parameter.part()->first) : 0;
    at::Tensor ordered = InOrderOf(parameter, gradient);
    tensor.operands.gradient = ordered.const_data_ptr();
    tensors_.push_back(tensor);
    entries_.push_back({std::move(parameters[index]), std::move(ordered), at::Tensor(), false,
                        groups_.size() - 1});
  }
}

at::Tensor OffloadStep::Sums(double factor) {
  const at::Tensor sums = at::empty({static_cast<std::int64_t>(tensors_.size())}, at::kDouble);
  const std::span<double> squares = Doubles(sums);
  const GilRelease without_gil;
  CheckOffload(runner_.Sums(tensors_, static_cast<float>(factor), squares));
  return sums;
}

at::Tensor OffloadStep::Run(double factor, std::uint64_t seed, bool wants_sums) {
  for (std::size_t t = 0; t < entries_.size(); ++t) {
    Entry& entry = entries_[t];
    const void* const gradient = tensors_[t].operands.gradient;
    tensors_[t].operands = entry.parameter->Operands(entry.copy);
    tensors_[t].operands.gradient = gradient;
    if (const at::Tensor& published = entry.parameter->published(); published.defined()) {
      tensors_[t].copy = static_cast<std::byte*>(published.mutable_data_ptr());
      tensors_[t].copy_element_bytes = published.element_size();
    }
  }
  SetCoefficients(factor, seed);
  at::Tensor sums;
  std::span<double> squares;
  if (wants_sums) {
    sums = at::empty({static_cast<std::int64_t>(tensors_.size())}, at::kDouble);
    squares = Doubles(sums);
  }
  // Counted now, while all that is needed for it is in the cache.
  for (Entry& entry : entries_) {
    entry.was_fresh = entry.parameter->fresh;
    Count(entry, 1);
    if (!entry.copy.defined()) entry.parameter->Stepped();
  }
  try {
    const GilRelease without_gil;
    CheckOffload(runner_.Update(tensors_, squares));
  } catch (...) {
    for (const Entry& entry : entries_) {
      Count(entry, -1);
      entry.parameter->fresh = entry.was_fresh;
    }
    throw;
  }
  for (const Entry& entry : entries_)
    if (entry.copy.defined()) entry.parameter->Stepped(entry.copy);
  return sums;
}

void OffloadStep::Count(const Entry& entry, float steps) {
  if (const at::Tensor& step = entry.parameter->step(); step.defined())
    *step.mutable_data_ptr<float>() += steps;
}

void OffloadStep::SetCoefficients(double factor, std::uint64_t seed) {
  // Tensors of a group are mostly at the same step, and powers take long.
  std::uint64_t step_of_last = 0;
  std::size_t group_of_last = 0;
  for (std::size_t t = 0; t < entries_.size(); ++t) {
    const Entry& entry = entries_[t];
    const at::Tensor& counter = entry.parameter->step();
    std::uint64_t step = entry.parameter->fresh ? 1 : 2;
    if (counter.defined()) step = static_cast<std::uint64_t>(*counter.const_data_ptr<float>()) + 1;
    const std::uint64_t own_seed = SeedOf(seed, entry.parameter->stream);
    if (step == step_of_last && entry.group == group_of_last && entry.parameter->plain_states()) {
      tensors_[t].coefficients = tensors_[t - 1].coefficients;
    } else {
      tensors_[t].coefficients = CoefficientsOf(groups_[entry.group], step, factor, own_seed);
    }
    step_of_last = step;
    group_of_last = entry.group;
  }
}

void OffloadStep::Clear() {
  groups_.clear();
  entries_.clear();
  tensors_.clear();
}

}  // namespace tidegate
