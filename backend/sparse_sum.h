#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "common/status.h"

namespace tidegate {

/// One rank's part of an all-reduce of sparse COO tensors. Ranks store different elements, and
/// different numbers of them, so it is two all-gathers and a sum that each rank does for itself:
///
///   Begin -> all-gather header() into headers() -> Compare -> all-gather indices() into
///   all_indices() and values() into all_values() -> Finish
///
/// Each element is summed in rank order, 16-bit floats in fp32, and rounded once. Takes memory for
/// what all ranks store. Used once, by one thread; errors are mistakes in the arguments.
class SparseSum {
 public:
  explicit SparseSum(int ranks) : ranks_(ranks) {}

  /// `tensor` must be sparse COO, on the cpu, and `op` SUM.
  Status Begin(const at::Tensor& tensor, const c10d::ReduceOp& op);
  const at::Tensor& header() const { return header_; }    ///< int64 [kHeader]
  const at::Tensor& headers() const { return headers_; }  ///< int64 [ranks, kHeader]

  /// Fails, on all ranks alike, unless all have tensors of one shape, dtype and layout of
  /// dimensions.
  Status Compare();
  at::Tensor indices() const;  ///< int64 [sparse dimensions, stored elements]
  at::Tensor values() const;   ///< [stored elements, dense dimensions...]
  const std::vector<at::Tensor>& all_indices() const { return all_indices_; }
  const std::vector<at::Tensor>& all_values() const { return all_values_; }

  /// Writes the sum, coalesced, into the tensor given to Begin. Fails, with nothing written, if a
  /// rank sent an index outside of the shape.
  Status Finish() const;

 private:
  Status CheckIndices() const;
  at::Tensor Part(int rank) const;

  const int ranks_;
  at::Tensor tensor_;
  at::Tensor part_;  ///< This rank's, coalesced, of the type that is summed in.
  at::Tensor header_;
  at::Tensor headers_;
  std::vector<at::Tensor> all_indices_;
  std::vector<at::Tensor> all_values_;
};

}  // namespace tidegate
