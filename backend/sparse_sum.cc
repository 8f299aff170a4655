#include "backend/sparse_sum.h"

#include <algorithm>
#include <string>

#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include "backend/validate.h"

namespace tidegate {
namespace {

// A header: dtype, sparse and dense dimensions, stored elements, then the shape.
constexpr std::int64_t kDtype = 0;
constexpr std::int64_t kSparseDims = 1;
constexpr std::int64_t kDenseDims = 2;
constexpr std::int64_t kStored = 3;
constexpr std::int64_t kShape = 4;
constexpr std::int64_t kMaxDims = 64;  // More than torch's kernels take.
constexpr std::int64_t kHeader = kShape + kMaxDims;

// torch has no sparse sum of these.
bool HasNoSum(at::ScalarType dtype) {
  return dtype == at::kBool || dtype == at::kUInt16 || dtype == at::kUInt32 || dtype == at::kUInt64;
}

// Of a peer: its numbers may be anything.
std::string Describe(const std::int64_t* header) {
  const auto in_range = [](std::int64_t value, std::int64_t end) {
    return value >= 0 && value < end;
  };
  if (!in_range(header[kDtype], static_cast<std::int64_t>(at::ScalarType::NumOptions)) ||
      !in_range(header[kSparseDims], kMaxDims + 1) ||
      !in_range(header[kDenseDims], kMaxDims + 1 - header[kSparseDims])) {
    return "no valid header";
  }
  const at::IntArrayRef shape(header + kShape, header[kSparseDims] + header[kDenseDims]);
  return c10::str(static_cast<at::ScalarType>(header[kDtype]), " of shape ", shape, " with ",
                  header[kSparseDims], " sparse dimensions");
}

}  // namespace

Status SparseSum::Begin(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const at::NoGradGuard no_grad;
  if (!tensor.defined()) return Invalid("tensor is no tensor (None or undefined)");
  if (tensor.layout() != at::kSparse) {
    return Invalid("tensor has layout ", tensor.layout(),
                   "; all_reduce takes dense tensors and sparse COO tensors (to_sparse_coo())");
  }
  if (!tensor.device().is_cpu()) {
    return Invalid("the group serves cpu tensors in this build; got tensor on ", tensor.device());
  }
  if (op.op_ != c10d::ReduceOp::SUM) {
    return Status(StatusCode::kUnsupported,
                  "sparse tensors can only be summed (SUM); pass tensor.to_dense() for another op");
  }
  if (HasNoSum(tensor.scalar_type())) {
    return Status(StatusCode::kUnsupported,
                  c10::str("torch adds no sparse tensors of dtype ", tensor.scalar_type(),
                           "; pass tensor.to_dense() or a tensor of another dtype"));
  }
  if (tensor.dim() > kMaxDims) return Invalid("tensor has ", tensor.dim(), " dimensions");
  tensor_ = tensor;
  part_ = tensor.detach().to(at::toOpMathType(tensor.scalar_type())).coalesce();
  header_ = at::zeros({kHeader}, at::kLong);
  auto* header = header_.mutable_data_ptr<std::int64_t>();
  header[kDtype] = static_cast<std::int64_t>(tensor.scalar_type());
  header[kSparseDims] = part_.sparse_dim();
  header[kDenseDims] = part_.dense_dim();
  header[kStored] = part_._nnz();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), header + kShape);
  headers_ = at::empty({ranks_, kHeader}, at::kLong);
  return Status();
}

Status SparseSum::Compare() {
  const auto* first = headers_.const_data_ptr<std::int64_t>();
  const at::Tensor indices = part_._indices();
  const at::Tensor values = part_._values();
  std::vector<std::int64_t> shape = values.sizes().vec();
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::int64_t* header = first + rank * kHeader;
    const bool alike = std::equal(header, header + kStored, first) &&
                       std::equal(header + kShape, header + kHeader, first + kShape);
    if (!alike) {
      return Invalid("rank ", rank, " has a sparse tensor of ", Describe(header),
                     ", rank 0 one of ", Describe(first), "; they must be alike on all ranks");
    }
    if (header[kStored] < 0) {
      return Invalid("rank ", rank, " claims to store ", header[kStored], " elements");
    }
    shape[0] = header[kStored];
    all_indices_.push_back(at::empty({indices.size(0), shape[0]}, indices.options()));
    all_values_.push_back(at::empty(shape, values.options()));
  }
  return Status();
}

at::Tensor SparseSum::indices() const { return part_._indices().contiguous(); }

at::Tensor SparseSum::values() const { return part_._values().contiguous(); }

at::Tensor SparseSum::Part(int rank) const {
  return at::_sparse_coo_tensor_unsafe(all_indices_[rank], all_values_[rank], tensor_.sizes(), {},
                                       /*is_coalesced=*/true);
}

Status SparseSum::CheckIndices() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const at::Tensor& indices = all_indices_[rank];
    const auto* index = indices.const_data_ptr<std::int64_t>();
    for (std::int64_t dimension = 0; dimension < indices.size(0); ++dimension) {
      const std::int64_t size = tensor_.size(dimension);
      for (std::int64_t i = 0; i < indices.size(1); ++i, ++index) {
        if (*index >= 0 && *index < size) continue;
        return Status(StatusCode::kInternal,
                      c10::str("rank ", rank, " sent index ", *index, " of dimension ", dimension,
                               ", which has size ", size));
      }
    }
  }
  return Status();
}

Status SparseSum::Finish() const {
  TIDEGATE_RETURN_IF_ERROR(CheckIndices());
  const at::NoGradGuard no_grad;
  // One rank after the other: coalesce() of all at once would add in an order of its own.
  at::Tensor sum = Part(0);
  for (int rank = 1; rank < ranks_; ++rank) sum = sum.add(Part(rank));
  at::Tensor target = tensor_;
  target.copy_(sum.coalesce());
  return Status();
}

}  // namespace tidegate
