#include "tests/unit/collectives/kernels/reference.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

namespace tidegate::testing {

std::optional<SmallFormat> FormatOf(DataType dtype) {
  switch (dtype) {
    case DataType::kBFloat16:
      return kBrain;
    case DataType::kFloat16:
      return kHalf;
    case DataType::kFloat8E4M3FN:
      return kE4M3FN;
    case DataType::kFloat8E5M2:
      return kE5M2;
    case DataType::kFloat8E4M3FNUZ:
      return kE4M3FNUZ;
    case DataType::kFloat8E5M2FNUZ:
      return kE5M2FNUZ;
    case DataType::kFloat8E8M0FNU:
      return kE8M0FNU;
    default:
      return std::nullopt;
  }
}

DataType PartOf(DataType dtype) {
  if (dtype == DataType::kComplex32) return DataType::kFloat16;
  if (dtype == DataType::kComplex64) return DataType::kFloat32;
  if (dtype == DataType::kComplex128) return DataType::kFloat64;
  return dtype;
}

namespace {

double DecodeExponent(std::uint16_t code) {
  return code == 0xff ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, code - 127);
}

std::uint16_t EncodeExponent(double value) {
  const double magnitude = std::fabs(value);
  if (!std::isfinite(value)) return 0xff;
  if (magnitude <= 0x1p-127) return 0;
  if (magnitude < 0x1p-126) return 1;
  const int exponent = std::ilogb(magnitude);
  const bool up = magnitude >= std::ldexp(1.5, exponent);
  return static_cast<std::uint16_t>(exponent + 127 + (up ? 1 : 0));
}

// The first code that is no number: infinity, or else NaN.
int FirstSpecial(SmallFormat format) {
  const int sign = 1 << (format.exponent_bits + format.fraction_bits);
  if (format.specials == Specials::kNanMinusZero) return sign;
  if (format.specials == Specials::kNanLast) return sign - 1;
  return sign - (1 << format.fraction_bits);
}

}  // namespace

double DecodeSmall(SmallFormat format, std::uint16_t bits) {
  if (format.specials == Specials::kExponentOnly) return DecodeExponent(bits);
  const int sign = 1 << (format.exponent_bits + format.fraction_bits);
  const int code = format.specials == Specials::kNanMinusZero ? bits : bits % sign;
  const int special = FirstSpecial(format);
  if (code == special && format.specials == Specials::kIeee)
    return bits >= sign ? -std::numeric_limits<double>::infinity()
                        : std::numeric_limits<double>::infinity();
  // The only codes beyond that of "fnuz" are negative numbers.
  if (code == special || (code > special && format.specials == Specials::kIeee))
    return std::numeric_limits<double>::quiet_NaN();
  const int fraction = bits % (1 << format.fraction_bits);
  const int exponent = (bits >> format.fraction_bits) % (1 << format.exponent_bits);
  const double magnitude = exponent == 0
                               ? std::ldexp(fraction, 1 - format.bias - format.fraction_bits)
                               : std::ldexp((1 << format.fraction_bits) + fraction,
                                            exponent - format.bias - format.fraction_bits);
  return bits >= sign ? -magnitude : magnitude;
}

std::uint16_t EncodeSmall(SmallFormat format, double value) {
  if (format.specials == Specials::kExponentOnly) return EncodeExponent(value);
  const int sign = std::signbit(value) ? 1 << (format.exponent_bits + format.fraction_bits) : 0;
  const int special = FirstSpecial(format);
  if (std::isnan(value)) {
    const bool ieee = format.specials == Specials::kIeee;
    return static_cast<std::uint16_t>(sign | (ieee ? special | (special >> 1) : special));
  }
  const int too_large = format.specials == Specials::kNanLast ? special - 1 : special;
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | too_large);
  int exponent;
  std::frexp(value, &exponent);  // The leading bit has the weight 2^(exponent - 1).
  if (value == 0 || exponent < 2 - format.bias) exponent = 2 - format.bias;
  // How many times the last place; to nearest even, the default rounding mode.
  double steps = std::nearbyint(std::ldexp(std::fabs(value), format.fraction_bits + 1 - exponent));
  if (steps == 2 << format.fraction_bits) {
    steps /= 2;
    ++exponent;
  }
  const int one = 1 << format.fraction_bits;
  const int code =
      steps < one ? int(steps) : ((exponent - 1 + format.bias) * one) + int(steps) - one;
  if (code >= special) return static_cast<std::uint16_t>(sign | too_large);
  if (code == 0 && format.specials == Specials::kNanMinusZero) return 0;
  return static_cast<std::uint16_t>(sign | code);
}

namespace {

template <typename T>
T LoadAs(const std::byte* buffer, std::size_t index) {
  T value;
  std::memcpy(&value, buffer + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void StoreAs(std::byte* buffer, std::size_t index, T value) {
  std::memcpy(buffer + index * sizeof(T), &value, sizeof(T));
}

// T is float or double: the accumulation type.
template <typename T>
T ReduceFloats(ReduceOp op, std::span<const T> x, std::span<const double> factors) {
  T result = op == ReduceOp::kPremulSum ? static_cast<T>(factors[0]) * x[0] : x[0];
  for (std::size_t s = 1; s < x.size(); ++s) {
    const bool any_nan = std::isnan(result) || std::isnan(x[s]);
    const T nan = std::numeric_limits<T>::quiet_NaN();
    if (op == ReduceOp::kPremulSum) {
      const T product = static_cast<T>(factors[s]) * x[s];
      result = result + product;
    } else if (op == ReduceOp::kMin) {
      result = any_nan ? nan : (x[s] < result ? x[s] : result);
    } else if (op == ReduceOp::kMax) {
      result = any_nan ? nan : (x[s] > result ? x[s] : result);
    } else if (op == ReduceOp::kProduct) {
      result = result * x[s];
    } else {
      result = result + x[s];
    }
  }
  if (op == ReduceOp::kAvg) result = result / static_cast<T>(x.size());
  return result;
}

// 128 bits: nothing overflows before the final conversion, which takes the value modulo 2^bits.
template <typename T>
T ReduceIntegers(ReduceOp op, std::span<const T> x) {
  using Wide = __int128;
  Wide result = x[0];
  for (std::size_t s = 1; s < x.size(); ++s) {
    const Wide next = x[s];
    if (op == ReduceOp::kMin) {
      result = next < result ? next : result;
    } else if (op == ReduceOp::kMax) {
      result = next > result ? next : result;
    } else if (op == ReduceOp::kProduct) {
      result = static_cast<T>(static_cast<std::make_unsigned_t<T>>(result * next));
    } else if (op == ReduceOp::kBitAnd) {
      result &= next;
    } else if (op == ReduceOp::kBitOr) {
      result |= next;
    } else if (op == ReduceOp::kBitXor) {
      result ^= next;
    } else {
      result += next;
    }
  }
  // The sum is one of 64 bits, with the sign of the type.
  using Sum = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  if (op == ReduceOp::kAvg) result = static_cast<Sum>(result) / static_cast<Sum>(x.size());
  return static_cast<T>(static_cast<std::make_unsigned_t<T>>(result));
}

bool ReduceBools(ReduceOp op, std::span<const bool> x) {
  bool all = true;
  bool any = false;
  bool odd = false;
  for (bool value : x) {
    all = all && value;
    any = any || value;
    odd = odd != value;
  }
  if (op == ReduceOp::kBitXor) return odd;
  return op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kBitOr ? any : all;
}

template <typename T>
struct Complex {
  T real;
  T imaginary;
};

template <typename T>
Complex<T> MultiplyComplex(std::span<const Complex<T>> x) {
  Complex<T> result = x[0];
  for (const Complex<T>& next : x.subspan(1)) {
    // By name, because each product is rounded by itself.
    const T ac = result.real * next.real;
    const T bd = result.imaginary * next.imaginary;
    const T ad = result.real * next.imaginary;
    const T bc = result.imaginary * next.real;
    result = {ac - bd, ad + bc};
  }
  return result;
}

// Calls `reduce` with the sources' elements of each index, as `read` gives them, and stores what
// `write` makes of the result.
template <typename Value, typename Read, typename Reduce, typename Write>
std::vector<std::byte> ForEachElement(std::span<const std::vector<std::byte>> sources,
                                      std::size_t elements, std::size_t element_bytes, Read read,
                                      Reduce reduce, Write write) {
  std::vector<std::byte> result(elements * element_bytes);
  // Not a vector, whose bool is none.
  const auto values = std::make_unique<Value[]>(sources.size());
  for (std::size_t i = 0; i < elements; ++i) {
    for (std::size_t s = 0; s < sources.size(); ++s) values[s] = read(sources[s].data(), i);
    write(result.data(), i, reduce(std::span<const Value>(values.get(), sources.size())));
  }
  return result;
}

}  // namespace

bool HasMeaning(DataType dtype, ReduceOp op) {
  const bool bitwise = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  const bool ordering = op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (op == ReduceOp::kNone || dtype == DataType::kOther1) return false;
  if (dtype == DataType::kBool) return op != ReduceOp::kAvg && op != ReduceOp::kPremulSum;
  if (PartOf(dtype) != dtype) return !bitwise && !ordering;
  const bool floating =
      FormatOf(dtype) || dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
  return floating ? !bitwise : op != ReduceOp::kPremulSum;
}

std::vector<std::byte> ReferenceReduce(DataType dtype, ReduceOp op,
                                       std::span<const std::vector<std::byte>> sources,
                                       std::size_t elements, std::span<const double> factors) {
  if (!HasMeaning(dtype, op)) return {};
  const DataType part = PartOf(dtype);
  if (part != dtype && op != ReduceOp::kProduct)
    return ReferenceReduce(part, op, sources, 2 * elements, factors);

  const auto floating = [&]<typename T>(auto read, auto write) {
    const auto reduce = [&](std::span<const T> x) { return ReduceFloats<T>(op, x, factors); };
    return ForEachElement<T>(sources, elements, SizeOf(dtype), read, reduce, write);
  };
  const auto complex = [&]<typename T>(auto read, auto write) {
    return ForEachElement<Complex<T>>(
        sources, elements, SizeOf(dtype),
        [&](const std::byte* buffer, std::size_t i) {
          return Complex<T>{read(buffer, 2 * i), read(buffer, 2 * i + 1)};
        },
        MultiplyComplex<T>,
        [&](std::byte* buffer, std::size_t i, Complex<T> value) {
          write(buffer, 2 * i, value.real);
          write(buffer, 2 * i + 1, value.imaginary);
        });
  };
  // Small floats, in as many bytes as `Bits` has.
  const auto reader = [&]<typename Bits>(Bits) {
    return [format = FormatOf(part)](const std::byte* buffer, std::size_t i) {
      return static_cast<float>(DecodeSmall(*format, LoadAs<Bits>(buffer, i)));
    };
  };
  const auto writer = [&]<typename Bits>(Bits) {
    return [format = FormatOf(part)](std::byte* buffer, std::size_t i, float value) {
      StoreAs(buffer, i, static_cast<Bits>(EncodeSmall(*format, value)));
    };
  };
  const auto integers = [&]<typename T>(T) {
    const auto reduce = [&](std::span<const T> x) { return ReduceIntegers<T>(op, x); };
    return ForEachElement<T>(sources, elements, sizeof(T), LoadAs<T>, reduce, StoreAs<T>);
  };
  switch (dtype) {
    case DataType::kFloat32:
      return floating.template operator()<float>(LoadAs<float>, StoreAs<float>);
    case DataType::kFloat64:
      return floating.template operator()<double>(LoadAs<double>, StoreAs<double>);
    case DataType::kBFloat16:
    case DataType::kFloat16:
      return floating.template operator()<float>(reader(std::uint16_t{}), writer(std::uint16_t{}));
    case DataType::kFloat8E4M3FN:
    case DataType::kFloat8E5M2:
    case DataType::kFloat8E4M3FNUZ:
    case DataType::kFloat8E5M2FNUZ:
    case DataType::kFloat8E8M0FNU:
      return floating.template operator()<float>(reader(std::uint8_t{}), writer(std::uint8_t{}));
    case DataType::kComplex32:
      return complex.template operator()<float>(reader(std::uint16_t{}), writer(std::uint16_t{}));
    case DataType::kComplex64:
      return complex.template operator()<float>(LoadAs<float>, StoreAs<float>);
    case DataType::kComplex128:
      return complex.template operator()<double>(LoadAs<double>, StoreAs<double>);
    case DataType::kInt8:
      return integers(std::int8_t{});
    case DataType::kUint8:
      return integers(std::uint8_t{});
    case DataType::kInt16:
      return integers(std::int16_t{});
    case DataType::kInt32:
      return integers(std::int32_t{});
    case DataType::kInt64:
      return integers(std::int64_t{});
    case DataType::kUint16:
      return integers(std::uint16_t{});
    case DataType::kUint32:
      return integers(std::uint32_t{});
    case DataType::kUint64:
      return integers(std::uint64_t{});
    case DataType::kBool:
      return ForEachElement<bool>(
          sources, elements, 1,
          [](const std::byte* buffer, std::size_t i) { return buffer[i] != std::byte{0}; },
          [&](std::span<const bool> x) { return ReduceBools(op, x); }, StoreAs<bool>);
    default:
      return {};
  }
}

bool IsNan(DataType dtype, const std::byte* buffer, std::size_t index) {
  if (dtype == DataType::kFloat32) return std::isnan(LoadAs<float>(buffer, index));
  if (dtype == DataType::kFloat64) return std::isnan(LoadAs<double>(buffer, index));
  const std::optional<SmallFormat> format = FormatOf(dtype);
  if (!format) return false;
  const std::uint16_t bits = SizeOf(dtype) == 1 ? LoadAs<std::uint8_t>(buffer, index)
                                                : LoadAs<std::uint16_t>(buffer, index);
  return std::isnan(DecodeSmall(*format, bits));
}

}  // namespace tidegate::testing
