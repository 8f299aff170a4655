#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "backend/fetch_list.h"
#include "offload/optim/update.h"

namespace tidegate {

/// Makes a zeroed CPU tensor of sizes, strides and dtype.
using ZerosFunction =
    std::function<at::Tensor(at::IntArrayRef, at::IntArrayRef, at::ScalarType dtype)>;
/// In the memory of OffloadEngine, and in ordinary memory.
ZerosFunction ZerosOfEngine();
ZerosFunction OrdinaryZeros();

/// Elements of a parameter that one rank of several steps, in the order in which they lie in
/// memory: it begins at a multiple of offload::kBlock.
struct OffloadPart {
  std::int64_t row = 0;  ///< Of OffloadShards.
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// What the offload engine keeps for one parameter. The tensors have the parameter's shape and,
/// where that is dense in memory, its strides; else they are contiguous. Of a part, they have one
/// dimension. Used by one thread at a time. Everything throws as ThrowOffloadStatus.
class OffloadParameter {
 public:
  /// `parameter`: float32, bfloat16 or float16, strided, on the CPU. States are zero, the master is
  /// what the parameter is. `state_count` at most 3; with `counts_steps` there is a step of zero.
  /// With `part` the record is of that part alone, and the parameter must be dense in memory.
  OffloadParameter(const at::Tensor& parameter, offload::Master master, offload::States states,
                   int state_count, bool counts_steps, const ZerosFunction& zeros = ZerosOfEngine(),
                   std::optional<OffloadPart> part = std::nullopt);

  /// Whether this is still the record of `parameter`: the same memory, in the process that made it.
  /// It may have more states than that, which steps leave as they are.
  bool Serves(const at::Tensor& parameter, int state_count) const;
  /// Whether it has states or a master, in memory of the process that this one was forked from,
  /// which goes on to step them.
  bool IsOfParentProcess() const;
  /// Whether nobody has given its tensors other memory, or another order in it.
  bool HasItsMemory() const;

  const std::vector<at::Tensor>& states() const { return states_; }
  /// Of 8-bit states, one a state; else empty.
  const std::vector<at::Tensor>& scales() const { return scales_; }
  /// float32, or int16 of a split master; undefined without a master.
  const at::Tensor& master() const { return master_; }
  /// A float32 scalar, as torch's optimizers keep it; undefined for rules that count none.
  const at::Tensor& step() const { return step_; }
  /// Whether states are in the layout of torch's optimizers, float32.
  bool plain_states() const { return states_kind_ == offload::States::kFloat32; }

  /// The parameter is the shard of `dtensor`, which is what operations change the version of and
  /// what autograd keeps. Called before anything else.
  void BelongTo(const at::Tensor& dtensor);

  void FillState(int index, double value);
  /// From a tensor of the parameter's shape and any floating-point dtype.
  void ImportState(int index, const at::Tensor& values);
  /// Its weights may be loaded before or after: elements whose rounding is not what the parameter
  /// is at the next step follow the parameter (of a split master: but for the remainder).
  void ImportMaster(const at::Tensor& values);
  /// New float32 tensors of the parameter's shape, from which Import makes the same bits again.
  at::Tensor ExportState(int index) const;
  at::Tensor ExportMaster() const;

  /// Whether the next step is the first that its states see (SGD's momentum buffer).
  bool fresh = true;
  /// Which stream of random numbers rounds its states.
  std::uint64_t stream = 0;

  // For OffloadStep.

  /// Adds what a step looks at, but for the parameter and the elements.
  void AddTo(FetchList& list) const;
  /// All of it, even if the record is of a part.
  const at::Tensor& parameter() const { return whole_; }
  const std::optional<OffloadPart>& part() const { return part_; }
  /// Of a part: where the others of the node find it after a step. Undefined else.
  const at::Tensor& published() const { return published_; }
  /// The elements that the record is of.
  const at::Tensor& stepped() const { return parameter_; }
  offload::Layout LayoutWith(offload::ElementType gradient) const;
  /// The memory of everything but the gradient, as offload::StepTensor wants it. A parameter that
  /// is not dense is copied to `copy` first, which Stepped writes to it afterwards. The master
  /// follows the parameter if anybody else has written to that since the last step: each element
  /// that is not its master's rounding is taken. Writes past autograd (`parameter.data`) are
  /// noticed by the first and last 32 elements. A split master keeps its remainders when somebody
  /// writes to the parameter.
  offload::TensorOperands Operands(at::Tensor& copy);
  /// Who keeps the parameter for a backward pass must learn that it changes. Where Operands made a
  /// copy, to be called after the step with that.
  void Stepped(const at::Tensor& copy = {});

 private:
  /// Of states, scales, master and step.
  using Addresses = std::array<const void*, 8>;

  Addresses Memories() const;
  std::int64_t ScaleBlocks() const;
  std::optional<std::uint32_t> Version() const;
  void FollowParameter();
  /// Null where there are none.
  float* ScalesOf(std::size_t index) const;
  /// Whether the parameter is something else than the float32 master's rounding, by a sample.
  bool SampleDiffers() const;
  void MoveToWhole(offload::TensorOperands& operands) const;

  const at::Tensor whole_;
  at::Tensor dtensor_;  ///< Without its gradient; undefined if `whole_` is no shard of one.
  const std::optional<OffloadPart> part_;
  const at::Tensor parameter_;  ///< A view of the part.
  const void* const memory_;    ///< Of the whole.
  const offload::Master master_kind_;
  const offload::States states_kind_;
  const std::uint64_t generation_;
  bool dense_ = true;
  std::vector<at::Tensor> states_;
  std::vector<at::Tensor> scales_;
  at::Tensor master_;
  at::Tensor published_;
  at::Tensor step_;
  std::optional<std::uint32_t> version_;  ///< Of the parameter when the master was equal to it.
  bool master_imported_ = false;          ///< And not compared with the parameter since.
  std::vector<std::int64_t> strides_;     ///< Of states and master.
  Addresses memories_ = {};               ///< Where they were made.
};

/// TypeError, naming `what`, for a tensor whose elements do not lie at its address: a subclass that
/// wraps others, or one without memory.
void CheckStorage(const at::Tensor& tensor, const char* what);

/// nullopt for dtypes that are not offered.
std::optional<offload::ElementType> ElementTypeOf(at::ScalarType dtype);

}  // namespace tidegate
