#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/kernels/dtype.h"
#include "collectives/kernels/reduce_targets.h"
#include "tests/unit/collectives/kernels/reference.h"
#include "tests/unit/common/test_extent.h"

// Every kernel of every target, over awkward counts, alignments and aliasing, against the
// reference, bit for bit.

namespace tidegate::testing {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kGuard = 64;
constexpr std::byte kUntouched{0xa5};

template <typename T>
void Put(Bytes& buffer, std::size_t index, T value) {
  std::memcpy(buffer.data() + index * sizeof(T), &value, sizeof(T));
}

void PutFloat(DataType dtype, Bytes& buffer, std::size_t index, double value) {
  if (dtype == DataType::kFloat64) Put(buffer, index, value);
  if (dtype == DataType::kFloat32) Put(buffer, index, static_cast<float>(value));
  const std::optional<SmallFormat> format = FormatOf(dtype);
  if (!format) return;
  const std::uint16_t code = EncodeSmall(*format, value);
  if (SizeOf(dtype) == 1)
    Put(buffer, index, static_cast<std::uint8_t>(code));
  else
    Put(buffer, index, code);
}

bool IsFloating(DataType dtype) {
  return dtype == DataType::kFloat32 || dtype == DataType::kFloat64 || FormatOf(dtype);
}

double Uniform(std::mt19937_64& random) {
  return std::ldexp(static_cast<double>(random()), -62) - 2;  // From -2 to 2.
}

// Random bits for integers. Of floating-point elements one in eight is random bits, one in eight a
// value where formats end, and the rest are of like magnitude, so that every addition rounds. The
// kind depends on the index alone: else a NaN among many sources would hide all other results.
Bytes MakeSource(DataType dtype, std::size_t elements, std::mt19937_64& random) {
  Bytes buffer(elements * SizeOf(dtype));
  for (std::size_t at = 0; at < buffer.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t bits = random();
    std::memcpy(buffer.data() + at, &bits, std::min(sizeof(bits), buffer.size() - at));
  }
  if (dtype == DataType::kBool) {
    // Mostly false or true as torch writes it, sometimes another byte that C++ would call true.
    for (std::byte& byte : buffer)
      if (random() % 8 != 0) byte = static_cast<std::byte>(random() % 2);
  }
  const DataType part = PartOf(dtype);
  if (!IsFloating(part)) return buffer;
  constexpr double kEdges[] = {0.0,    -0.0,    0x1p-149, 0x1p-133, 0x1p-126, 0x1p-24, 0x1p-14,
                               65504., 65520.0, 0x1p127,  -0x1p127, 1e308,    -1e39,   0x1p-1060,
                               448.0,  -240.0,  57344.0,  0x1p-127, 0x1p-9,   0x1p-10, 0x1p-17};
  for (std::size_t i = 0; i < buffer.size() / SizeOf(part); ++i) {
    const std::size_t kind = i * 5 % 8;
    if (kind == 1) PutFloat(part, buffer, i, kEdges[random() % std::size(kEdges)]);
    if (kind >= 2) PutFloat(part, buffer, i, Uniform(random));
  }
  return buffer;
}

enum class Destination { kOwn, kOwnStreamed, kFirstSource, kLastSource, kLastSourceStreamed };

using Case = std::tuple<KernelTarget, DataType, ReduceOp>;

class ReduceMatrixTest : public ::testing::TestWithParam<Case> {
 protected:
  void Check(int source_count, std::size_t elements, std::mt19937_64& random) {
    const auto [target, dtype, op] = GetParam();
    const ReduceKernel kernel = FindReduceKernelFor(target, dtype, op);
    std::vector<Bytes> sources;
    std::vector<double> factors;
    for (int s = 0; s < source_count; ++s) {
      sources.push_back(MakeSource(dtype, elements, random));
      factors.push_back(Uniform(random));
    }
    const Bytes expected = ReferenceReduce(dtype, op, sources, elements, factors);
    ASSERT_EQ(expected.size(), elements * SizeOf(dtype));
    const std::size_t shift = random() % 64;
    for (Destination where :
         {Destination::kOwn, Destination::kOwnStreamed, Destination::kFirstSource,
          Destination::kLastSource, Destination::kLastSourceStreamed}) {
      SCOPED_TRACE("sources " + std::to_string(source_count) + ", elements " +
                   std::to_string(elements) + ", shift " + std::to_string(shift) +
                   ", destination " + std::to_string(static_cast<int>(where)));
      ASSERT_NO_FATAL_FAILURE(
          RunAndCompare(kernel, sources, factors, elements, shift, where, expected));
    }
  }

 private:
  // Places each source at another alignment, odd ones included, at the end of its own block so that
  // an address sanitizer sees a read past it.
  void RunAndCompare(ReduceKernel kernel, const std::vector<Bytes>& sources,
                     const std::vector<double>& factors, std::size_t elements, std::size_t shift,
                     Destination where, const Bytes& expected) {
    const DataType dtype = PartOf(std::get<DataType>(GetParam()));
    const std::size_t bytes = expected.size();
    std::vector<Bytes> blocks;
    std::vector<std::byte*> placed;
    for (const Bytes& source : sources) {
      const std::size_t offset = (shift + 13 * blocks.size()) % 64;
      blocks.emplace_back(offset, kUntouched);
      blocks.back().insert(blocks.back().end(), source.begin(), source.end());
      placed.push_back(blocks.back().data() + offset);
    }
    Bytes own(kGuard + shift + bytes + kGuard, kUntouched);
    std::byte* dst = own.data() + kGuard + shift;
    if (where == Destination::kFirstSource) dst = placed.front();
    if (where == Destination::kLastSource || where == Destination::kLastSourceStreamed)
      dst = placed.back();

    kernel({.dst = dst,
            .sources = placed.data(),
            .source_count = static_cast<int>(placed.size()),
            .elements = elements,
            .factors = factors.data(),
            .divisor = static_cast<int>(placed.size()),
            .streaming =
                where == Destination::kOwnStreamed || where == Destination::kLastSourceStreamed});

    const bool same = bytes == 0 || std::memcmp(dst, expected.data(), bytes) == 0;
    for (std::size_t i = 0; i < bytes / SizeOf(dtype) && !same; ++i) {
      const std::size_t at = i * SizeOf(dtype);
      if (std::memcmp(dst + at, expected.data() + at, SizeOf(dtype)) == 0) continue;
      // Which NaN comes out of two is the processor's choice.
      if (IsNan(dtype, dst, i) && IsNan(dtype, expected.data(), i)) continue;
      FAIL() << "element " << i << ": "
             << ::testing::PrintToString(Bytes(dst + at, dst + at + SizeOf(dtype))) << " and not "
             << ::testing::PrintToString(
                    Bytes(expected.begin() + at, expected.begin() + at + SizeOf(dtype)));
    }
    for (std::size_t s = 0; s < sources.size(); ++s) {
      if (placed[s] == dst || bytes == 0) continue;
      ASSERT_EQ(std::memcmp(placed[s], sources[s].data(), bytes), 0) << "changed source " << s;
    }
    if (where == Destination::kOwn || where == Destination::kOwnStreamed)
      std::memset(dst, std::to_integer<int>(kUntouched), bytes);
    ASSERT_EQ(own, Bytes(own.size(), kUntouched)) << "wrote outside the destination";
  }
};

TEST_P(ReduceMatrixTest, EqualsTheReference) {
  const auto [target, dtype, op] = GetParam();
  if (!IsSupported(target)) GTEST_SKIP() << "this CPU has no " << NameOfTarget(target);
  // The few beyond would take as long as all others together.
  const int most = kIsSlowBuild && !TestsAll() ? 3 * 5000 : 64 * 1027;
  std::mt19937_64 random(static_cast<unsigned>(dtype) * 16 + static_cast<unsigned>(op));
  for (int source_count : {1, 2, 3, 4, 5, 8, 64}) {
    for (int elements : {0, 1, 7, 31, 64, 1027, 5000}) {
      if (source_count * elements > most) continue;
      ASSERT_NO_FATAL_FAILURE(Check(source_count, static_cast<std::size_t>(elements), random));
    }
  }
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (KernelTarget target : KernelTargets()) {
    for (int d = 0; d <= static_cast<int>(DataType::kOther1); ++d) {
      for (int o = 0; o <= static_cast<int>(ReduceOp::kBitXor); ++o) {
        // The pairs without a meaning are the subject of FindReduceKernelTest.
        const auto dtype = static_cast<DataType>(d);
        const auto op = static_cast<ReduceOp>(o);
        if (HasMeaning(dtype, op)) cases.emplace_back(target, dtype, op);
      }
    }
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  const auto [target, dtype, op] = info.param;
  return std::string(NameOfTarget(target)) + "_" + std::string(NameOf(dtype)) + "_" +
         std::string(NameOf(op));
}

INSTANTIATE_TEST_SUITE_P(Kernels, ReduceMatrixTest, ::testing::ValuesIn(AllCases()), CaseName);

}  // namespace
}  // namespace tidegate::testing
