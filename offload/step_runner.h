#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "offload/optim/update.h"
#include "offload/threads/thread_pool.h"

namespace tidegate::offload {

/// One tensor of a step: where it lies and what is done to it. The operands must stay valid for the
/// duration of the call.
struct StepTensor {
  UpdateFunction update = nullptr;
  SumsFunction sums = nullptr;
  TensorOperands operands;
  Coefficients coefficients;
};

/// Runs steps of an optimizer over any number of tensors as one space of tiles, so that 2,000 small
/// tensors cost one dispatch, as a single large one does. What is computed is the same bit for bit
/// whatever the number of threads. Keeps the cut of the last step: steps over tensors of the same
/// sizes allocate nothing. Used by one thread at a time.
class StepRunner {
 public:
  /// `pool` outlives the runner.
  explicit StepRunner(ThreadPool& pool) : pool_(pool) {}

  /// Updates every tensor. `squares`, unless empty, has an entry for each tensor: the sum of the
  /// squares of its gradient times its factor, in double and in an order that depends on the number
  /// of elements alone; infinite or NaN where an element is. It costs no pass of its own. An error
  /// is that of the pool (a worker was lost): some tensors are then updated and others not.
  Status Update(std::span<const StepTensor> tensors, std::span<double> squares = {});

  /// A pass over the gradients alone, each times `factor`: what a global norm is made of before
  /// the factor of the step is known. The coefficients are not looked at.
  Status Sums(std::span<const StepTensor> tensors, float factor, std::span<double> squares);

 private:
  /// A part of a tensor, at most kTile elements.
  struct Piece {
    std::size_t tensor;
    std::size_t first;
    std::size_t count;
    std::size_t block;  ///< Index of its first block in blocks_.
  };

  void Cut(std::span<const StepTensor> tensors);
  bool IsCutFor(std::span<const StepTensor> tensors) const;
  void AddUp(std::span<double> squares) const;
  template <typename Body>
  Status RunPieces(const Body& body);

  ThreadPool& pool_;
  std::vector<std::size_t> counts_;        ///< Of the tensors that it is cut for.
  std::vector<std::size_t> first_blocks_;  ///< Of each tensor in blocks_, and the end.
  std::vector<Piece> pieces_;
  std::vector<std::size_t> first_pieces_;  ///< Of each item of the pool, and the end.
  std::vector<BlockSums> blocks_;
};

}  // namespace tidegate::offload
