#pragma once

#include <array>
#include <cmath>
#include <cstddef>

#include "common/status.h"
#include "offload/optim/coefficients.h"
#include "offload/optim/layout.h"

namespace tidegate::offload {

/// Elements of a block: tensors are cut at multiples of it, and sums of squares are taken per
/// block.
inline constexpr std::size_t kBlock = 4096;
/// Elements that share a scale in States::kBlock8.
inline constexpr std::size_t kScaleBlock = 256;
/// How many scales a state of `count` elements has.
constexpr std::size_t ScalesOf(std::size_t count) {
  return (count + kScaleBlock - 1) / kScaleBlock;
}

/// The memory of one tensor, `count` elements each, aligned to the element, none overlapping
/// another. What the layout does not have is null. The memory is the caller's.
struct TensorOperands {
  std::size_t count = 0;
  const void* gradient = nullptr;
  void* parameter = nullptr;
  void* master = nullptr;  ///< float32, or the 16-bit remainders of a split master.
  /// exp_avg, exp_avg_sq, max_exp_avg_sq | momentum_buffer | sum | exp_avg.
  std::array<void*, 3> states = {};
  /// Of kBlock8: one for each kScaleBlock elements of a state, the last for what is left.
  std::array<float*, 3> scales = {};
  /// Whether a parameter beside a float32 master, which is only written, goes past the cache, where
  /// its first element begins a cache line: saves reading its lines first, 5% of the time where the
  /// tensors are larger than the cache; wrong where somebody reads it at once. The same bits.
  bool stream_parameter = true;
};

/// Of one block of kBlock elements, or of what is left at the end of the tensor.
struct BlockSums {
  /// The sum of the squares of the gradients, each multiplied with the gradient factor and rounded
  /// to float32 first. Infinite or NaN exactly where one of them is.
  double squares = 0;

  bool finite() const { return std::isfinite(squares); }
};

/// One step of the optimizer on elements [first, first + count), in one pass over their memory: the
/// gradient is multiplied with its factor, and from it come the new states and the new parameter in
/// all the places of the layout. What is written depends neither on how a tensor is cut nor on the
/// instruction set, bit for bit, but for the payload of a NaN. NaNs and infinities go where the
/// formulas take them; subnormals are kept whatever the calling thread has set.
///
/// Where `blocks` is not null, writes blocks[0] for the first block, and so on, one for each block
/// begun. REQUIRES: `first` is a multiple of kBlock; `first + count` is one, too, or the count of
/// the tensor. Thread-safe on ranges that do not overlap. Neither blocks nor allocates nor throws.
using UpdateFunction = void (*)(const TensorOperands& operands, std::size_t first,
                                std::size_t count, const Coefficients& coefficients,
                                BlockSums* blocks);

/// The function for a rule (with or without amsgrad, with or without momentum) and a layout; the
/// other hyperparameters reach it through its coefficients. kUnsupported where there is none.
Result<UpdateFunction> FindUpdate(const Hyperparameters& hyperparameters, const Layout& layout);

/// The sums that a step would leave in `blocks`, without the step: what a global norm is made of
/// before the clip factor is known. The same REQUIRES.
using SumsFunction = void (*)(const void* gradient, std::size_t first, std::size_t count,
                              float gradient_factor, BlockSums* blocks);

SumsFunction FindSums(ElementType gradient);

}  // namespace tidegate::offload
