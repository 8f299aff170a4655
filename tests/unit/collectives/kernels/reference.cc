#include "tests/unit/collectives/kernels/reference.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

namespace tidegate::testing {

double DecodeSmall(SmallFormat format, std::uint16_t bits) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int fraction = bits % (1 << format.fraction_bits);
  const int exponent = (bits >> format.fraction_bits) % (1 << format.exponent_bits);
  double magnitude;
  if (exponent == (1 << format.exponent_bits) - 1) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, 1 - bias - format.fraction_bits);
  } else {
    magnitude =
        std::ldexp((1 << format.fraction_bits) + fraction, exponent - bias - format.fraction_bits);
  }
  return bits >= 0x8000 ? -magnitude : magnitude;
}

std::uint16_t EncodeSmall(SmallFormat format, double value) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int infinity = ((1 << format.exponent_bits) - 1) << format.fraction_bits;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | (infinity >> 1));
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  int exponent;
  std::frexp(value, &exponent);  // The leading bit has the weight 2^(exponent - 1).
  if (value == 0 || exponent < 2 - bias) exponent = 2 - bias;
  // How many times the last place; to nearest even, the default rounding mode.
  double steps = std::nearbyint(std::ldexp(std::fabs(value), format.fraction_bits + 1 - exponent));
  if (steps == 2 << format.fraction_bits) {
    steps /= 2;
    ++exponent;
  }
  if (steps < (1 << format.fraction_bits)) return static_cast<std::uint16_t>(sign | int(steps));
  const int biased = exponent - 1 + bias;
  if (biased >= (1 << format.exponent_bits) - 1) return static_cast<std::uint16_t>(sign | infinity);
  return static_cast<std::uint16_t>(sign | (biased << format.fraction_bits) |
                                    (int(steps) - (1 << format.fraction_bits)));
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
    } else {
      result += next;
    }
  }
  if (op == ReduceOp::kAvg)
    result = static_cast<std::int64_t>(result) / static_cast<std::int64_t>(x.size());
  return static_cast<T>(static_cast<std::make_unsigned_t<T>>(result));
}

bool ReduceBools(ReduceOp op, std::span<const bool> x) {
  bool all = true;
  bool any = false;
  for (bool value : x) {
    all = all && value;
    any = any || value;
  }
  return op == ReduceOp::kSum || op == ReduceOp::kMax ? any : all;
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

std::vector<std::byte> ReferenceReduce(DataType dtype, ReduceOp op,
                                       std::span<const std::vector<std::byte>> sources,
                                       std::size_t elements, std::span<const double> factors) {
  const auto floating = [&]<typename T>(auto read, auto write) {
    const auto reduce = [&](std::span<const T> x) { return ReduceFloats<T>(op, x, factors); };
    return ForEachElement<T>(sources, elements, SizeOf(dtype), read, reduce, write);
  };
  const auto small = [&](SmallFormat format) {
    return floating.template operator()<float>(
        [format](const std::byte* buffer, std::size_t i) {
          return static_cast<float>(DecodeSmall(format, LoadAs<std::uint16_t>(buffer, i)));
        },
        [format](std::byte* buffer, std::size_t i, float value) {
          StoreAs(buffer, i, EncodeSmall(format, value));
        });
  };
  const auto integers = [&]<typename T>(T) {
    if (op == ReduceOp::kPremulSum) return std::vector<std::byte>();
    const auto reduce = [&](std::span<const T> x) { return ReduceIntegers<T>(op, x); };
    return ForEachElement<T>(sources, elements, sizeof(T), LoadAs<T>, reduce, StoreAs<T>);
  };
  switch (dtype) {
    case DataType::kFloat32:
      return floating.template operator()<float>(LoadAs<float>, StoreAs<float>);
    case DataType::kFloat64:
      return floating.template operator()<double>(LoadAs<double>, StoreAs<double>);
    case DataType::kBFloat16:
      return small(kBrain);
    case DataType::kFloat16:
      return small(kHalf);
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
    case DataType::kBool:
      if (op == ReduceOp::kAvg || op == ReduceOp::kPremulSum) return {};
      return ForEachElement<bool>(
          sources, elements, 1,
          [](const std::byte* buffer, std::size_t i) { return buffer[i] != std::byte{0}; },
          [&](std::span<const bool> x) { return ReduceBools(op, x); }, StoreAs<bool>);
    default:
      return {};
  }
}

bool IsNan(DataType dtype, const std::byte* buffer, std::size_t index) {
  switch (dtype) {
    case DataType::kFloat32:
      return std::isnan(LoadAs<float>(buffer, index));
    case DataType::kFloat64:
      return std::isnan(LoadAs<double>(buffer, index));
    case DataType::kBFloat16:
      return std::isnan(DecodeSmall(kBrain, LoadAs<std::uint16_t>(buffer, index)));
    case DataType::kFloat16:
      return std::isnan(DecodeSmall(kHalf, LoadAs<std::uint16_t>(buffer, index)));
    default:
      return false;
  }
}

}  // namespace tidegate::testing
