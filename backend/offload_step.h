#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "backend/offload_parameter.h"
#include "offload/step_runner.h"

namespace tidegate {

/// The steps of one optimizer, one after the other: Add what has a gradient, perhaps Sums, then
/// Run, then Clear. Nothing is written before everything has been checked. Used by one thread at a
/// time; Sums and Run block without the GIL. Everything throws as ThrowOffloadStatus, and TypeError
/// for a gradient whose dtype is not offered.
class OffloadStep {
 public:
  OffloadStep();

  /// Before the first call of Stale in a step: what the last step looked at is likely to be looked
  /// at again.
  void FetchAgain() { seen_.Fetch(); }

  /// Which of `records` is null, not the record of the same of `parameters`, or has another number
  /// of states than `state_count`.
  std::vector<std::size_t> Stale(const std::vector<std::shared_ptr<OffloadParameter>>& records,
                                 const std::vector<at::Tensor>& parameters, int state_count);

  /// Tensors of one parameter group: `gradients[i]` is that of `parameters[i]`, which errors call
  /// parameter `places[i]` of its group, or i where there are no places.
  void Add(const offload::Hyperparameters& hyperparameters,
           std::vector<std::shared_ptr<OffloadParameter>> parameters,
           const std::vector<at::Tensor>& gradients, const std::vector<std::size_t>& places = {});

  /// The sum of squares of each gradient times `factor`, in the order of the calls: float64, 1-D.
  at::Tensor Sums(double factor);

  /// One step with each gradient times `factor`. `seed` is that of stochastic rounding. With
  /// `wants_sums` the result is as that of Sums(factor), else undefined.
  at::Tensor Run(double factor, std::uint64_t seed, bool wants_sums);

  /// Drops all tensors.
  void Clear();

  // For OffloadShards.

  /// What was added, in the order of the calls.
  std::size_t size() const { return entries_.size(); }
  const std::shared_ptr<OffloadParameter>& parameter(std::size_t entry) const {
    return entries_[entry].parameter;
  }
  /// Of the last call that had sums.
  std::span<const offload::BlockSums> blocks() const { return runner_.blocks(); }

 private:
  struct Entry {
    std::shared_ptr<OffloadParameter> parameter;
    at::Tensor gradient;
    at::Tensor copy;  ///< Of a parameter that is not dense.
    bool was_fresh;   ///< OffloadParameter::fresh before the step.
    std::size_t group;
  };

  static void Count(const Entry& entry, float steps);
  void SetCoefficients(double factor, std::uint64_t seed);

  offload::StepRunner runner_;
  std::vector<offload::Hyperparameters> groups_;
  std::vector<Entry> entries_;
  std::vector<offload::StepTensor> tensors_;  ///< Of the entries.
  FetchList seen_;
};

}  // namespace tidegate
