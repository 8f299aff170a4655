#pragma once

#include <cstddef>
#include <span>

#include "common/status.h"
#include "offload/threads/thread_pool.h"
#include "offload/tile_space.h"

namespace tidegate::offload {

/// Runs steps of an optimizer over any number of tensors as one space of tiles, so that 2,000 small
/// tensors cost one dispatch, as a single large one does. What is computed is the same bit for bit
/// whatever the number of threads. Steps over tensors of the same sizes as the last one's allocate
/// nothing. Used by one thread at a time.
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

  /// What the squares of the last call were made of, block by block (TileSpace::SumOfBlocks). Valid
  /// until the next call.
  std::span<const BlockSums> blocks() const { return space_.blocks(); }

 private:
  template <typename Body>
  Status RunPieces(std::span<const StepTensor> tensors, const Body& body);

  ThreadPool& pool_;
  TileSpace space_;
};

}  // namespace tidegate::offload
