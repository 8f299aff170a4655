#include "offload/optim/convert.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/check.h"
#include "common/simd/float_environment.h"
#include "offload/optim/block8.h"
#include "offload/optim/scalar_elements.h"
#include "offload/optim/split_master.h"

namespace tidegate::offload {
namespace {

using Codes = std::array<float, 256>;

/// Of codes of a scale of 1.
const Codes& CodesOf(bool squares) {
  static const auto make = [](auto decode) {
    Codes values;
    for (std::size_t code = 0; code < values.size(); ++code)
      values[code] = decode(static_cast<std::uint8_t>(code), 1.0f);
    return values;
  };
  static const Codes of_signed = make(DecodeSigned8);
  static const Codes of_unsigned = make(DecodeUnsigned8);
  return squares ? of_unsigned : of_signed;
}

}  // namespace

void ExportState(States states, bool squares, const void* from, const float* scales,
                 std::size_t first, std::size_t count, float* to) {
  const DefaultFloatEnvironment environment;
  switch (states) {
    case States::kFloat32:
      std::copy_n(static_cast<const float*>(from) + first, count, to);
      return;
    case States::kBFloat16:
      for (std::size_t i = 0; i < count; ++i)
        to[i] = ScalarElement<ElementType::kBFloat16>::Load(from, first + i);
      return;
    case States::kBlock8: {
      TIDEGATE_CHECK(first % kScaleBlock == 0);
      const Codes& codes = CodesOf(squares);
      const auto* const stored = static_cast<const std::uint8_t*>(from);
      for (std::size_t i = first; i < first + count; ++i)
        to[i - first] = codes[stored[i]] * scales[i / kScaleBlock];
      return;
    }
  }
}

void ImportState(States states, bool squares, const float* from, std::size_t first,
                 std::size_t count, void* to, float* scales) {
  const DefaultFloatEnvironment environment;
  switch (states) {
    case States::kFloat32:
      std::copy_n(from, count, static_cast<float*>(to) + first);
      return;
    case States::kBFloat16:
      for (std::size_t i = 0; i < count; ++i)
        ScalarElement<ElementType::kBFloat16>::Store(to, first + i, from[i]);
      return;
    case States::kBlock8:
      TIDEGATE_CHECK(first % kScaleBlock == 0);
      for (std::size_t at = 0; at < count; at += kScaleBlock)
        scales[(first + at) / kScaleBlock] =
            EncodeBlock8(from + at, std::min(kScaleBlock, count - at), squares,
                         static_cast<std::uint8_t*>(to) + first + at);
      return;
  }
}

void ExportSplitMaster(const void* parameter, const void* master, std::size_t count, float* to) {
  const auto* const upper = static_cast<const std::uint16_t*>(parameter);
  const auto* const lower = static_cast<const std::uint16_t*>(master);
  for (std::size_t i = 0; i < count; ++i) to[i] = Joined({upper[i], lower[i]});
}

void ImportSplitMaster(const float* from, std::size_t count, void* parameter, void* master) {
  auto* const upper = static_cast<std::uint16_t*>(parameter);
  auto* const lower = static_cast<std::uint16_t*>(master);
  for (std::size_t i = 0; i < count; ++i) {
    const SplitFloat split = Split(from[i]);
    upper[i] = split.upper;
    lower[i] = split.lower;
  }
}

}  // namespace tidegate::offload
