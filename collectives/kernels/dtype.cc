#include "collectives/kernels/dtype.h"

#include "common/check.h"

namespace tidegate {

std::size_t SizeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kBool:
    case DataType::kFloat8E4M3FN:
    case DataType::kFloat8E5M2:
    case DataType::kFloat8E4M3FNUZ:
    case DataType::kFloat8E5M2FNUZ:
    case DataType::kFloat8E8M0FNU:
    case DataType::kOther1:
      return 1;
    case DataType::kBFloat16:
    case DataType::kFloat16:
    case DataType::kInt16:
    case DataType::kUint16:
      return 2;
    case DataType::kFloat32:
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kComplex32:
      return 4;
    case DataType::kFloat64:
    case DataType::kInt64:
    case DataType::kUint64:
    case DataType::kComplex64:
      return 8;
    case DataType::kComplex128:
      return 16;
  }
  ThrowInvariantError("SizeOf: not a DataType");
}

bool IsInteger(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kInt16:
    case DataType::kUint16:
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kInt64:
    case DataType::kUint64:
      return true;
    default:
      return false;
  }
}

std::string_view NameOf(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat64:
      return "float64";
    case DataType::kBFloat16:
      return "bfloat16";
    case DataType::kFloat16:
      return "float16";
    case DataType::kInt8:
      return "int8";
    case DataType::kUint8:
      return "uint8";
    case DataType::kInt16:
      return "int16";
    case DataType::kInt32:
      return "int32";
    case DataType::kInt64:
      return "int64";
    case DataType::kBool:
      return "bool";
    case DataType::kUint16:
      return "uint16";
    case DataType::kUint32:
      return "uint32";
    case DataType::kUint64:
      return "uint64";
    case DataType::kComplex32:
      return "complex32";
    case DataType::kComplex64:
      return "complex64";
    case DataType::kComplex128:
      return "complex128";
    case DataType::kFloat8E4M3FN:
      return "float8_e4m3fn";
    case DataType::kFloat8E5M2:
      return "float8_e5m2";
    case DataType::kFloat8E4M3FNUZ:
      return "float8_e4m3fnuz";
    case DataType::kFloat8E5M2FNUZ:
      return "float8_e5m2fnuz";
    case DataType::kFloat8E8M0FNU:
      return "float8_e8m0fnu";
    case DataType::kOther1:
      return "other1";
  }
  // Names end up in error messages about values received from a peer: show, do not throw.
  return "unknown dtype";
}

std::string_view NameOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kNone:
      return "NONE";
    case ReduceOp::kSum:
      return "SUM";
    case ReduceOp::kAvg:
      return "AVG";
    case ReduceOp::kPremulSum:
      return "PREMUL_SUM";
    case ReduceOp::kMin:
      return "MIN";
    case ReduceOp::kMax:
      return "MAX";
    case ReduceOp::kProduct:
      return "PRODUCT";
    case ReduceOp::kBitAnd:
      return "BAND";
    case ReduceOp::kBitOr:
      return "BOR";
    case ReduceOp::kBitXor:
      return "BXOR";
  }
  return "unknown reduce op";
}

}  // namespace tidegate
