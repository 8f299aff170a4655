#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidegate {

/// Element types as torch names them. Every type can be moved and all but kOther1 be reduced.
/// Values travel in fingerprints between processes of one build: append only.
enum class DataType : std::uint8_t {
  kFloat32,
  kFloat64,
  kBFloat16,
  kFloat16,
  kInt8,
  kUint8,
  kInt16,
  kInt32,
  kInt64,
  kBool,
  kUint16,
  kUint32,
  kUint64,
  kComplex32,
  kComplex64,
  kComplex128,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kFloat8E4M3FNUZ,
  kFloat8E5M2FNUZ,
  kFloat8E8M0FNU,
  kOther1,  ///< Any other type of 1 byte per element: moved, not reduced.
};

/// Bytes per element.
std::size_t SizeOf(DataType dtype);
/// "float32", "bfloat16", ...
std::string_view NameOf(DataType dtype);
/// Signed or unsigned; not bool, and not kOther1.
bool IsInteger(DataType dtype);

/// Values travel in fingerprints, too: append only.
enum class ReduceOp : std::uint8_t {
  kNone,
  kSum,
  kAvg,
  kPremulSum,
  kMin,
  kMax,
  kProduct,
  kBitAnd,
  kBitOr,
  kBitXor,
};
/// "SUM", "AVG", "PREMUL_SUM", "BAND", ...
std::string_view NameOf(ReduceOp op);

}  // namespace tidegate
