#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/kernels/dtype.h"
#include "collectives/schedule/schedule.h"
#include "common/inline_vector.h"

namespace tidegate {

/// Contiguous memory of the caller: one tensor, or one rank's part of one.
struct Block {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// Ranks of a group up to which nothing is allocated for a list that has one entry a rank.
inline constexpr std::size_t kRanksInside = 8;

using Blocks = InlineVector<Block, kRanksInside>;

/// What is known of the memory of a call's inputs: whether other processes could read it is asked
/// of the kernel (Transport::IsReadable), which takes its time.
enum class InputMemory : std::uint8_t {
  kAny,            ///< Each input may be of another kind: asked of each.
  kOneAllocation,  ///< Of one kind, whichever: asked of one.
  kMalloc,         ///< It can be read: not asked.
};

/// One collective as the caller asks for it.
///
///   collective       inputs                         outputs
///   all_gather       this rank's shard              one a rank; outputs[rank] as long as the input
///   reduce_scatter   one a rank                     as long as inputs[rank] (may be that memory)
///   all_reduce       the tensor                     the tensor (may be the same memory)
///   broadcast        root: the tensor               the tensor (root: the same memory)
///   reduce           the tensor                     root: the tensor (may be the same memory)
///   gather           the tensor                     root: one a rank (its own may be the tensor)
///   scatter          root: one a rank               the tensor (root: may be its own input)
///   all_to_all       one a rank                     one a rank
///   barrier          none                           none
/// Outputs must not overlap inputs other than as said or, for all_gather, where outputs[rank] is
/// the input itself.
struct CollectiveRequest {
  Collective collective = Collective::kBarrier;
  DataType dtype = DataType::kUint8;
  ReduceOp reduce_op = ReduceOp::kNone;
  double factor = 1.0;  ///< kPremulSum: this rank's factor.
  int root = -1;
  /// Outputs overlap inputs in a way not listed above: the inputs are copied when the call starts.
  bool copy_inputs = false;
  /// all_to_all: the way it was called says that all blocks of all ranks are equally long, as
  /// c10d's all_to_all_single does without splits. Ranks that say so of one call must all do.
  bool even = false;
  /// all_reduce, broadcast and reduce: names the order in which the tensor's elements lie in
  /// memory, where that is not row by row. Ranks must agree on it.
  std::uint64_t order = 0;
  InputMemory input_memory = InputMemory::kAny;
  Blocks inputs = {};
  Blocks outputs = {};
};

}  // namespace tidegate
