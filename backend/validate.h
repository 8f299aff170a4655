#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include "collectives/kernels/dtype.h"
#include "collectives/requests.h"
#include "common/inline_vector.h"
#include "common/status.h"

namespace tidegate {

// What a call must satisfy before the core sees it. Each check is kInvalidArgument (or
// kUnsupported) with the offending value; `what` names the argument ("input", "outputs[3]"). The
// caller adds operation, group and rank.

/// kInvalidArgument with its message in parts.
template <typename... Parts>
Status Invalid(const Parts&... parts) {
  return Status(StatusCode::kInvalidArgument, c10::str(parts...));
}

/// Defined, on a device that this build serves, strided, contiguous, with memory for all elements.
Status CheckTensor(const at::Tensor& tensor, std::string_view what);
/// CheckTensor, but contiguous in any order of its dimensions: channels_last, transposed.
Status CheckDense(const at::Tensor& tensor, std::string_view what);
/// Names that order, for ranks to compare; 0: row by row.
std::uint64_t OrderOf(const at::Tensor& tensor);
/// CheckTensor, and the dtype of `first`.
Status CheckAlike(const at::Tensor& tensor, const at::Tensor& first, std::string_view what);
/// CheckAlike of each; `what` is the name of the list.
Status CheckAllAlike(const std::vector<at::Tensor>& tensors, const at::Tensor& first,
                     std::string_view what);

/// `what` ("the list of outputs") has `size` entries where `expected` belong.
Status CheckLength(std::size_t size, std::size_t expected, std::string_view what);
/// `tensor` has `expected` elements, because of `reason` ("the input has 6 and there are 4 ranks").
Status CheckNumel(const at::Tensor& tensor, std::int64_t expected, std::string_view what,
                  std::string_view reason);
/// `value` is one of the ranks 0 .. ranks - 1; `what` is "root" or "peer".
Status CheckRank(std::int64_t value, int ranks, std::string_view what);

/// One a rank.
using Numels = InlineVector<std::int64_t, kRanksInside>;

/// The split sizes along dimension 0 of an all-to-all, in elements of `tensor`: `splits` times the
/// size of a row, or equal parts where `splits` is empty.
Result<Numels> SplitNumels(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                           int ranks, std::string_view what);

/// kUnsupported for a dtype that is neither known nor one byte wide.
Result<DataType> DataTypeOf(const at::Tensor& tensor);

}  // namespace tidegate
