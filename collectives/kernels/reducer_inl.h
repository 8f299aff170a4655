// The loop over elements and sources that every reduction shares. Part of reduce_inl.h, whose first
// comment says why this includes no standard header.
#pragma once

#include "collectives/kernels/operations_inl.h"
#include "collectives/kernels/vector_inl.h"

namespace tidegate::TIDEGATE_REDUCE_NAMESPACE {
namespace {

// How vectors come from and go to memory: all lanes, or the first few of a vector that would reach
// past the end of the buffer.
struct WholeAccess {
  template <typename V>
  TIDEGATE_INLINE V Load(const std::byte* from) const {
    V vector;
    std::memcpy(&vector, from, sizeof(V));
    return vector;
  }
  template <typename V>
  TIDEGATE_INLINE void Store(std::byte* to, V vector) const {
    std::memcpy(to, &vector, sizeof(V));
  }
};

struct PartialAccess {
  template <typename V>
  TIDEGATE_INLINE V Load(const std::byte* from) const {
    V vector{};
    std::memcpy(&vector, from, bytes);
    return vector;
  }
  template <typename V>
  TIDEGATE_INLINE void Store(std::byte* to, V vector) const {
    std::memcpy(to, &vector, bytes);
  }
  std::size_t bytes;
};

template <typename Codec, typename Op>
class Reducer {
 public:
  static void Run(const ReduceArguments& arguments) {
    [[maybe_unused]] const Environment environment;
    Reducer reducer(arguments);
    constexpr std::size_t kStep = sizeof(Stored);
    constexpr std::size_t kBlock = kStep * kVectorsPerBlock;
    const std::size_t end = arguments.elements * sizeof(Storage);
    std::size_t at = 0;
    for (; end - at >= kBlock; at += kBlock)
      reducer.template ReduceAt<kVectorsPerBlock>(at, WholeAccess{});
    for (; end - at >= kStep; at += kStep) reducer.template ReduceAt<1>(at, WholeAccess{});
    if (at != end) reducer.template ReduceAt<1>(at, PartialAccess{end - at});
  }

 private:
  using Storage = typename Codec::Storage;
  using Stored = typename Codec::Stored;
  using Value = typename Codec::Value;
  using Accumulator = typename Codec::Accumulator;
  using Divisor = std::conditional_t<Op::kMean, MeanDivisor<Accumulator>, NoDivisor>;
  struct NoEnvironment {};
  using Environment = std::conditional_t<std::is_floating_point_v<Accumulator>,
                                         DefaultFloatEnvironment, NoEnvironment>;
  static constexpr int kParts = Codec::kParts;
  // Enough independent additions to hide their latency, and few enough accumulators for registers.
  static constexpr int kVectorsPerBlock = 4 / kParts;

  explicit Reducer(const ReduceArguments& arguments)
      : arguments_(arguments), divisor_(arguments.divisor) {}

  /// Reduces `kVectors` vectors that start `at` bytes into the buffers. All sources are read before
  /// anything is written, because `dst` may be any of them.
  template <int kVectors, typename Access>
  TIDEGATE_INLINE void ReduceAt(std::size_t at, Access access) const {
    Value sums[kVectors][kParts];
    for (int i = 0; i < kVectors; ++i) ReadTerm(0, at + i * sizeof(Stored), access, sums[i]);
    for (int source = 1; source < arguments_.source_count; ++source) {
      for (int i = 0; i < kVectors; ++i) {
        Value term[kParts];
        ReadTerm(source, at + i * sizeof(Stored), access, term);
        if constexpr (Op::kComplex) {
          Op::CombineParts(sums[i], term);
        } else {
          for (int part = 0; part < kParts; ++part)
            sums[i][part] = Op::Combine(sums[i][part], term[part]);
        }
      }
    }
    for (int i = 0; i < kVectors; ++i) {
      if constexpr (Op::kMean)
        for (Value& sum : sums[i]) sum = divisor_.Apply(sum);
      access.Store(arguments_.dst + at + i * sizeof(Stored), Codec::Encode(sums[i]));
    }
  }

  template <typename Access>
  TIDEGATE_INLINE void ReadTerm(int source, std::size_t at, Access access,
                                Value (&term)[kParts]) const {
    Codec::Decode(access.template Load<Stored>(arguments_.sources[source] + at), term);
    if constexpr (Op::kPremultiplied)
      for (Value& part : term) part *= static_cast<Accumulator>(arguments_.factors[source]);
  }

  const ReduceArguments arguments_;
  [[no_unique_address]] const Divisor divisor_;
};

/// Runs a kernel of real numbers over complex ones: twice as many elements.
template <ReduceKernel kKernel>
void OverParts(const ReduceArguments& arguments) {
  ReduceArguments parts = arguments;
  parts.elements *= 2;
  kKernel(parts);
}

/// AVG of integers, in 64 bits. Plain loops: no instruction set divides vectors of integers, and
/// nothing of a training step averages them.
template <typename T>
void AverageIntegers(const ReduceArguments& arguments) {
  constexpr std::size_t kBlock = 512;
  using Quotient = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  const auto count_of_sources = static_cast<Quotient>(arguments.divisor);
  std::uint64_t sums[kBlock];  // Unsigned, so that int64 wraps.
  for (std::size_t begin = 0; begin < arguments.elements; begin += kBlock) {
    const std::size_t left = arguments.elements - begin;
    const std::size_t count = left < kBlock ? left : kBlock;
    for (std::size_t i = 0; i < count; ++i) sums[i] = 0;
    for (int source = 0; source < arguments.source_count; ++source) {
      const std::byte* from = arguments.sources[source] + begin * sizeof(T);
      for (std::size_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, from + i * sizeof(T), sizeof(T));
        sums[i] += static_cast<std::uint64_t>(value);
      }
    }
    std::byte* to = arguments.dst + begin * sizeof(T);
    for (std::size_t i = 0; i < count; ++i) {
      const T mean = static_cast<T>(static_cast<Quotient>(sums[i]) / count_of_sources);
      std::memcpy(to + i * sizeof(T), &mean, sizeof(T));
    }
  }
}

}  // namespace
}  // namespace tidegate::TIDEGATE_REDUCE_NAMESPACE
