#include "backend/validate.h"

#include <cstdint>
#include <string>

#include "common/hash.h"

namespace tidegate {
namespace {

std::string Indexed(std::string_view what, std::size_t index) {
  return std::string(what) + "[" + std::to_string(index) + "]";
}

// A tensor outlives its memory: FSDP frees storages that tensors still name.
Status CheckMemory(const at::Tensor& tensor, std::string_view what) {
  if (tensor.numel() == 0) return Status();
  const std::size_t held = tensor.storage().nbytes();
  const std::size_t needed =
      static_cast<std::size_t>(tensor.storage_offset() + tensor.numel()) * tensor.itemsize();
  if (held < needed) {
    return Invalid(what, " of shape ", tensor.sizes(), " needs ", needed,
                   " bytes of its storage, which holds ", held, ": it was freed or shrunk");
  }
  if (tensor.const_data_ptr() == nullptr) return Invalid(what, " has no memory (null pointer)");
  return Status();
}

Status NotContiguous(const at::Tensor& tensor, std::string_view what) {
  return Invalid(what, " is not contiguous: shape ", tensor.sizes(), ", strides ", tensor.strides(),
                 "; pass tensor.contiguous()");
}

}  // namespace

Status CheckDense(const at::Tensor& tensor, std::string_view what) {
  if (!tensor.defined()) return Invalid(what, " is no tensor (None or undefined)");
  if (tensor.layout() != at::kStrided) {
    return Invalid(what, " has layout ", tensor.layout(), "; pass a dense tensor (to_dense())");
  }
  if (tensor.is_quantized()) {
    // Its bytes mean nothing without the scale and zero point that they would leave behind.
    return Invalid(what, " is quantized; pass tensor.int_repr() or tensor.dequantize()");
  }
  if (!tensor.device().is_cpu()) {
    return Invalid("the group serves cpu tensors in this build; got ", what, " on ",
                   tensor.device());
  }
  if (!tensor.is_contiguous() && !tensor.is_non_overlapping_and_dense())
    return NotContiguous(tensor, what);
  if (tensor.is_conj() || tensor.is_neg()) {
    return Invalid(what,
                   " is a lazy conjugate or negative; pass tensor.resolve_conj() or"
                   " tensor.resolve_neg()");
  }
  if (!tensor.has_storage()) return Invalid(what, " has no memory (a fake or wrapper tensor)");
  return CheckMemory(tensor, what);
}

Status CheckTensor(const at::Tensor& tensor, std::string_view what) {
  TIDEGATE_RETURN_IF_ERROR(CheckDense(tensor, what));
  return tensor.is_contiguous() ? Status() : NotContiguous(tensor, what);
}

std::uint64_t OrderOf(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return 0;
  std::uint64_t hash = kHashSeed;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 1) continue;  // Its stride can be any number.
    hash = MixHash(hash, static_cast<std::uint64_t>(tensor.size(i)));
    hash = MixHash(hash, static_cast<std::uint64_t>(tensor.stride(i)));
  }
  return hash;
}

Status CheckAlike(const at::Tensor& tensor, const at::Tensor& first, std::string_view what) {
  TIDEGATE_RETURN_IF_ERROR(CheckTensor(tensor, what));
  if (tensor.scalar_type() != first.scalar_type()) {
    return Invalid(what, " has dtype ", tensor.scalar_type(), " where ", first.scalar_type(),
                   " belongs: all tensors of one call have one dtype");
  }
  return Status();
}

Status CheckAllAlike(const std::vector<at::Tensor>& tensors, const at::Tensor& first,
                     std::string_view what) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Status status = CheckAlike(tensors[i], first, what);
    // The name with its index is made only for the message: this loop is in the path of every call.
    if (!status.ok()) return CheckAlike(tensors[i], first, Indexed(what, i));
  }
  return Status();
}

Status CheckLength(std::size_t size, std::size_t expected, std::string_view what) {
  if (size == expected) return Status();
  return Invalid(what, " has ", size, size == 1 ? " entry" : " entries", " where ", expected,
                 expected == 1 ? " belongs" : " belong");
}

Status CheckNumel(const at::Tensor& tensor, std::int64_t expected, std::string_view what,
                  std::string_view reason) {
  if (tensor.numel() == expected) return Status();
  return Invalid(what, " has ", tensor.numel(), " elements (shape ", tensor.sizes(), ") where ",
                 expected, " belong: ", reason);
}

Status CheckRank(std::int64_t value, int ranks, std::string_view what) {
  if (value >= 0 && value < ranks) return Status();
  return Invalid(what, " ", value, " is no rank of this group, whose ranks are 0 to ", ranks - 1);
}

Result<Numels> SplitNumels(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                           int ranks, std::string_view what) {
  if (tensor.dim() == 0) return Invalid(what, " has no dimension 0 that could be split");
  const std::int64_t rows = tensor.size(0);
  if (splits.empty()) {
    if (rows % ranks != 0) {
      return Invalid("dimension 0 of ", what, " is ", rows, ", which cannot be split evenly over ",
                     ranks, " ranks");
    }
    Numels equal;
    equal.reserve(static_cast<std::size_t>(ranks));
    for (int i = 0; i < ranks; ++i) equal.push_back(tensor.numel() / ranks);
    return equal;
  }
  if (splits.size() != static_cast<std::size_t>(ranks)) {
    return Invalid(what, " has ", splits.size(), " split sizes where ", ranks,
                   " belong, one a rank");
  }
  std::int64_t left = rows;
  for (const std::int64_t split : splits) {
    // Comparing with what is left keeps the sum from overflowing.
    if (split < 0 || split > left) left = -1;
    if (left < 0) break;
    left -= split;
  }
  if (left != 0) {
    return Invalid("the split sizes ", at::IntArrayRef(splits), " of ", what,
                   " must be 0 or more and add up to its dimension 0, which is ", rows);
  }
  const std::int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  Numels numels;
  numels.reserve(splits.size());
  for (const std::int64_t split : splits) numels.push_back(split * row);
  return numels;
}

Result<DataType> DataTypeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kDouble:
      return DataType::kFloat64;
    case at::kBFloat16:
      return DataType::kBFloat16;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kChar:
      return DataType::kInt8;
    case at::kByte:
      return DataType::kUint8;
    case at::kShort:
      return DataType::kInt16;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    case at::kBool:
      return DataType::kBool;
    case at::kUInt16:
      return DataType::kUint16;
    case at::kUInt32:
      return DataType::kUint32;
    case at::kUInt64:
      return DataType::kUint64;
    case at::kComplexHalf:
      return DataType::kComplex32;
    case at::kComplexFloat:
      return DataType::kComplex64;
    case at::kComplexDouble:
      return DataType::kComplex128;
    case at::kFloat8_e4m3fn:
      return DataType::kFloat8E4M3FN;
    case at::kFloat8_e5m2:
      return DataType::kFloat8E5M2;
    case at::kFloat8_e4m3fnuz:
      return DataType::kFloat8E4M3FNUZ;
    case at::kFloat8_e5m2fnuz:
      return DataType::kFloat8E5M2FNUZ;
    case at::kFloat8_e8m0fnu:
      return DataType::kFloat8E8M0FNU;
    default:
      if (tensor.itemsize() == 1) return DataType::kOther1;
      return Status(StatusCode::kUnsupported, std::string("tensors of dtype ") +
                                                  at::toString(tensor.scalar_type()) +
                                                  " cannot be moved");
  }
}

}  // namespace tidegate
