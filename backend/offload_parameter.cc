#include "backend/offload_parameter.h"

#include <cmath>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <c10/util/Exception.h>

#include "backend/offload_engine.h"
#include "common/fork_generation.h"
#include "offload/optim/convert.h"
#include "offload/tile_space.h"

namespace tidegate {
namespace {

using offload::ElementType;
using offload::Master;
using offload::States;

at::ScalarType DtypeOf(States states) {
  switch (states) {
    case States::kBFloat16:
      return at::kBFloat16;
    case States::kBlock8:
      return at::kByte;
    default:
      return at::kFloat;
  }
}

/// Elements at either end that tell a write which the parameter's version does not: a few lines of
/// memory, where a look at all of them would be a fifth of a step.
constexpr std::size_t kSample = 32;

/// Like torch's error for the same mistake.
void CheckParameter(const at::Tensor& parameter) {
  if (!parameter.device().is_cpu() || parameter.layout() != at::kStrided)
    ThrowOffloadStatus({StatusCode::kInvalidArgument,
                        "offloaded parameters are strided tensors on the CPU; got one of " +
                            c10::str(parameter.layout(), " layout on ", parameter.device())});
  CheckStorage(parameter, "parameters");
  if (parameter.is_neg() || at::has_internal_overlap(parameter) == at::MemOverlap::Yes)
    ThrowOffloadStatus({StatusCode::kInvalidArgument,
                        "an offloaded parameter has memory of its own for each element; got a view "
                        "that negates or repeats (expand) what it is of"});
  if (!ElementTypeOf(parameter.scalar_type()))
    C10_THROW_ERROR(TypeError,
                    c10::str("parameters of ", parameter.scalar_type(), " cannot be offloaded"));
}

/// Of the states of AdamW: the second moments.
constexpr int kSquares = 1;

/// Of the step in OffloadParameter::Addresses.
constexpr std::size_t kStepMemory = 7;

/// Null of a tensor without memory, such as a sparse one.
const void* AddressOf(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.device().is_cpu() ? tensor.const_data_ptr() : nullptr;
}

std::size_t Elements(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

/// Uninitialised float32 of the same shape, in the same order in memory.
at::Tensor FloatsLike(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), at::kFloat);
}

at::Tensor PartOf(const at::Tensor& whole, const std::optional<OffloadPart>& part) {
  if (!part) return whole;
  if (!whole.is_non_overlapping_and_dense())
    ThrowOffloadStatus(
        {StatusCode::kInvalidArgument,
         c10::str("a parameter of shape ", whole.sizes(), " and strides ", whole.strides(),
                  " has gaps in memory and cannot be shared out over ranks; make it "
                  "contiguous")});
  return whole.as_strided({part->count}, {1}, whole.storage_offset() + part->first);
}

}  // namespace

ZerosFunction ZerosOfEngine() {
  return [](at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
    return ZerosIn(OffloadEngine::OfThisProcess().arena(), sizes, strides, dtype);
  };
}

ZerosFunction OrdinaryZeros() {
  return [](at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
    return at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype)).zero_();
  };
}

void CheckStorage(const at::Tensor& tensor, const char* what) {
  const bool wrapped = tensor.key_set().has(c10::DispatchKey::Python);
  const bool there = tensor.has_storage() && !tensor._is_zerotensor() &&
                     (tensor.numel() == 0 || tensor.const_data_ptr() != nullptr);
  if (wrapped || !there)
    C10_THROW_ERROR(TypeError,
                    c10::str("offloaded ", what, " are ordinary tensors; got ",
                             wrapped ? "a subclass that wraps others" : "one without memory"));
}

std::optional<ElementType> ElementTypeOf(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ElementType::kFloat32;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    case at::kHalf:
      return ElementType::kFloat16;
    default:
      return std::nullopt;
  }
}

OffloadParameter::OffloadParameter(const at::Tensor& parameter, Master master, States states,
                                   int state_count, bool counts_steps,
                                   const ZerosFunction& zeros_in, std::optional<OffloadPart> part)
    : whole_(parameter.detach()),
      part_(part),
      parameter_(PartOf(whole_, part)),
      memory_(parameter.const_data_ptr()),
      master_kind_(master),
      states_kind_(states),
      generation_(ForkGeneration()) {
  CheckParameter(parameter);
  dense_ = parameter_.is_non_overlapping_and_dense();
  const std::vector<std::int64_t> strides =
      dense_ ? parameter_.strides().vec() : parameter_.to(at::kMeta).contiguous().strides().vec();
  const auto zeros = [&](at::ScalarType dtype) {
    return zeros_in(parameter_.sizes(), strides, dtype);
  };
  for (int state = 0; state < state_count; ++state) {
    states_.push_back(zeros(DtypeOf(states)));
    if (states == States::kBlock8) {
      scales_.push_back(zeros_in({ScaleBlocks()}, {1}, at::kFloat));
    }
  }
  if (master == Master::kFloat32) {
    master_ = zeros(at::kFloat);
    master_.copy_(parameter_);
  } else if (master == Master::kSplit) {
    master_ = zeros(at::kShort);
  }
  if (part_) published_ = zeros(parameter_.scalar_type());
  if (counts_steps) step_ = at::zeros({}, at::kFloat);
  version_ = Version();
  strides_ = strides;
  memories_ = Memories();
}

bool OffloadParameter::Serves(const at::Tensor& parameter, int state_count) const {
  return parameter.has_storage() && parameter.const_data_ptr() == memory_ &&
         parameter.sizes() == whole_.sizes() && parameter.strides() == whole_.strides() &&
         parameter.scalar_type() == whole_.scalar_type() &&
         states_.size() >= static_cast<std::size_t>(state_count) &&
         generation_ == ForkGeneration() && HasItsMemory();
}

bool OffloadParameter::IsOfParentProcess() const {
  return generation_ != ForkGeneration() && (!states_.empty() || master_.defined());
}

bool OffloadParameter::HasItsMemory() const {
  // Python has these tensors, too, and may have given them other memory or another order.
  const auto is = [](const at::Tensor& tensor, at::ScalarType dtype, at::IntArrayRef sizes,
                     at::IntArrayRef strides) {
    return tensor.scalar_type() == dtype && tensor.sizes() == sizes && tensor.strides() == strides;
  };
  for (const at::Tensor& state : states_)
    if (!is(state, DtypeOf(states_kind_), parameter_.sizes(), strides_)) return false;
  for (const at::Tensor& scale : scales_)
    if (!is(scale, at::kFloat, {ScaleBlocks()}, {1})) return false;
  if (master_.defined() && !is(master_, master_kind_ == Master::kSplit ? at::kShort : at::kFloat,
                               parameter_.sizes(), strides_))
    return false;
  if (step_.defined() && !is(step_, at::kFloat, {}, {})) return false;
  return Memories() == memories_;
}

OffloadParameter::Addresses OffloadParameter::Memories() const {
  Addresses found = {};
  for (std::size_t s = 0; s < states_.size(); ++s) found[s] = AddressOf(states_[s]);
  for (std::size_t s = 0; s < scales_.size(); ++s) found[3 + s] = AddressOf(scales_[s]);
  if (master_.defined()) found[6] = AddressOf(master_);
  if (step_.defined()) found[kStepMemory] = AddressOf(step_);
  return found;
}

void OffloadParameter::AddTo(FetchList& list) const {
  list.Add(this, sizeof(*this));
  list.Add(whole_);
  if (part_) list.Add(parameter_);
  list.Add(states_.data(), states_.size() * sizeof(states_.front()));
  for (const at::Tensor& state : states_) list.Add(state);
  for (const at::Tensor& scale : scales_) list.Add(scale);
  if (master_.defined()) list.Add(master_);
  if (!step_.defined()) return;
  list.Add(step_);
  list.Add(memories_[kStepMemory], sizeof(float));
}

std::int64_t OffloadParameter::ScaleBlocks() const {
  return static_cast<std::int64_t>(offload::ScalesOf(Elements(parameter_)));
}

void OffloadParameter::BelongTo(const at::Tensor& dtensor) {
  dtensor_ = dtensor.detach();
  version_ = Version();
}

void OffloadParameter::FillState(int index, double value) {
  const auto at = static_cast<std::size_t>(index);
  if (plain_states()) {
    states_.at(at).fill_(value);
  } else {
    ImportState(index, at::full_like(states_.at(at), value, at::kFloat));
  }
}

void OffloadParameter::ImportState(int index, const at::Tensor& values) {
  const auto at = static_cast<std::size_t>(index);
  const at::Tensor& state = states_.at(at);
  const at::Tensor ordered = FloatsLike(state).copy_(values);
  offload::ImportState(states_kind_, index == kSquares, ordered.const_data_ptr<float>(), 0,
                       Elements(state), state.mutable_data_ptr(), ScalesOf(at));
}

at::Tensor OffloadParameter::ExportState(int index) const {
  const auto at = static_cast<std::size_t>(index);
  const at::Tensor& state = states_.at(at);
  at::Tensor values = FloatsLike(state);
  offload::ExportState(states_kind_, index == kSquares, state.const_data_ptr(), ScalesOf(at), 0,
                       Elements(state), values.mutable_data_ptr<float>());
  return values;
}

float* OffloadParameter::ScalesOf(std::size_t index) const {
  return scales_.empty() ? nullptr : scales_[index].mutable_data_ptr<float>();
}

void OffloadParameter::ImportMaster(const at::Tensor& values) {
  if (master_kind_ == Master::kFloat32) {
    master_.copy_(values);
    master_imported_ = true;
    return;
  }
  const at::Tensor ordered = FloatsLike(master_).copy_(values);
  const at::Tensor upper = at::empty_like(master_, at::kBFloat16);
  offload::ImportSplitMaster(ordered.const_data_ptr<float>(), Elements(master_),
                             upper.mutable_data_ptr(), master_.mutable_data_ptr());
}

at::Tensor OffloadParameter::ExportMaster() const {
  at::Tensor values = FloatsLike(master_);
  if (master_kind_ == Master::kFloat32) return values.copy_(master_);
  const at::Tensor upper = at::empty_like(master_, at::kBFloat16).copy_(parameter_);
  offload::ExportSplitMaster(upper.const_data_ptr(), master_.const_data_ptr(), Elements(master_),
                             values.mutable_data_ptr<float>());
  return values;
}

offload::Layout OffloadParameter::LayoutWith(ElementType gradient) const {
  return {.gradient = gradient,
          .parameter = *ElementTypeOf(parameter_.scalar_type()),
          .master = master_kind_,
          .states = states_kind_};
}

std::optional<std::uint32_t> OffloadParameter::Version() const {
  if (parameter_.is_inference()) return std::nullopt;
  auto version = static_cast<std::uint32_t>(parameter_._version());
  // Operations on a DTensor leave that of its shard alone. Both only grow.
  if (dtensor_.defined() && !dtensor_.is_inference())
    version += static_cast<std::uint32_t>(dtensor_._version());
  return version;
}

bool OffloadParameter::SampleDiffers() const {
  const at::Tensor ordered = dense_ ? parameter_ : parameter_.contiguous();
  const auto count = static_cast<std::size_t>(parameter_.numel());
  const auto differs = [&]<typename T>(const T* parameter) {
    const float* const master = master_.const_data_ptr<float>();
    for (std::size_t i = 0; i < count; ++i) {
      // Weights that are loaded are other ones nearly everywhere.
      if (i == kSample && count > 2 * kSample) i = count - kSample;
      const auto found = static_cast<float>(parameter[i]);
      const auto kept = static_cast<float>(static_cast<T>(master[i]));
      if (found != kept && !(std::isnan(found) && std::isnan(kept))) return true;
    }
    return false;
  };
  return ordered.scalar_type() == at::kBFloat16 ? differs(ordered.const_data_ptr<at::BFloat16>())
                                                : differs(ordered.const_data_ptr<at::Half>());
}

void OffloadParameter::FollowParameter() {
  // A split master's remainders stay: which elements were written cannot be told, those that were
  // not keep their value, and one that was is off by less than its rounding.
  if (master_kind_ != Master::kFloat32) return;
  if (Version() == version_ && !master_imported_ && !SampleDiffers()) return;
  // What still is the master's rounding keeps the bits that it does not show.
  const at::Tensor changed = master_.to(parameter_.scalar_type()).ne(parameter_);
  master_.copy_(at::where(changed, parameter_.to(at::kFloat), master_));
  master_imported_ = false;
  version_ = Version();
}

offload::TensorOperands OffloadParameter::Operands(at::Tensor& copy) {
  FollowParameter();
  offload::TensorOperands operands;
  operands.count = static_cast<std::size_t>(parameter_.numel());
  if (!dense_) copy = parameter_.contiguous();
  operands.parameter = dense_ ? parameter_.mutable_data_ptr() : copy.mutable_data_ptr();
  if (master_.defined()) operands.master = master_.mutable_data_ptr();
  for (std::size_t s = 0; s < states_.size(); ++s) {
    operands.states[s] = states_[s].mutable_data_ptr();
    if (!scales_.empty()) operands.scales[s] = scales_[s].mutable_data_ptr<float>();
  }
  if (part_) MoveToWhole(operands);
  return operands;
}

/// From where the part begins to where the whole would.
void OffloadParameter::MoveToWhole(offload::TensorOperands& operands) const {
  const auto first = static_cast<std::size_t>(part_->first);
  operands.parameter = offload::ElementZero(operands.parameter, first, parameter_.element_size());
  if (master_.defined())
    operands.master = offload::ElementZero(operands.master, first, master_.element_size());
  for (std::size_t s = 0; s < states_.size(); ++s) {
    operands.states[s] = offload::ElementZero(operands.states[s], first, states_[s].element_size());
    if (!scales_.empty())
      operands.scales[s] = static_cast<float*>(
          offload::ElementZero(operands.scales[s], first / offload::kScaleBlock, sizeof(float)));
  }
}

void OffloadParameter::Stepped(const at::Tensor& copy) {
  if (!dense_) {
    parameter_.copy_(copy);
  } else if (!parameter_.is_inference()) {
    parameter_.unsafeGetTensorImpl()->bump_version();
  }
  if (dtensor_.defined() && !dtensor_.is_inference())
    dtensor_.unsafeGetTensorImpl()->bump_version();
  version_ = Version();
  fresh = false;
}

}  // namespace tidegate
