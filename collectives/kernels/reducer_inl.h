// The loop over elements and sources that every reduction shares. Compiled once a target by the
// files that include it through hwy/foreach_target.h.
//
// Vectors are written out rather than left to the compiler's auto-vectoriser: a block of
// accumulators must stay in registers while the loop over the sources runs inside, which reads
// every source once, a few cache lines at a time, and needs no memory for sums however many sources
// there are.
#if defined(TIDEGATE_KERNELS_REDUCER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_KERNELS_REDUCER_INL_H
#undef TIDEGATE_KERNELS_REDUCER_INL_H
#else
#define TIDEGATE_KERNELS_REDUCER_INL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "collectives/kernels/operations_inl.h"
#include "collectives/kernels/reduce.h"
#include "common/simd/codecs_inl.h"
#include "common/simd/float_environment.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How vectors come from and go to memory. Bytes, because buffers have any alignment.
struct WholeAccess {
  template <typename D>
  HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) const {
    const hn::Repartition<std::uint8_t, D> bytes;
    return hn::BitCast(d, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(from)));
  }
  template <typename D>
  HWY_INLINE void Store(D, std::byte* to, hn::Vec<D> vector) const {
    const hn::Repartition<std::uint8_t, D> bytes;
    hn::StoreU(hn::BitCast(bytes, vector), bytes, reinterpret_cast<std::uint8_t*>(to));
  }
};

/// Stores past the cache. REQUIRES: `to` is aligned to a vector.
struct StreamingAccess : WholeAccess {
  template <typename D>
  HWY_INLINE void Store(D, std::byte* to, hn::Vec<D> vector) const {
    const hn::Repartition<std::uint8_t, D> bytes;
    hn::Stream(hn::BitCast(bytes, vector), bytes, reinterpret_cast<std::uint8_t*>(to));
  }
};

/// The first few bytes of a vector that would reach past the end of the buffer.
class PartialAccess {
 public:
  explicit PartialAccess(std::size_t bytes) : bytes_(bytes) {}

  template <typename D>
  HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) const {
    Buffer buffer{};
    std::memcpy(buffer.bytes, from, bytes_);
    return WholeAccess().Load(d, buffer.bytes);
  }
  template <typename D>
  HWY_INLINE void Store(D d, std::byte* to, hn::Vec<D> vector) const {
    Buffer buffer;
    WholeAccess().Store(d, buffer.bytes, vector);
    std::memcpy(to, buffer.bytes, bytes_);
  }

 private:
  struct Buffer {
    alignas(HWY_MAX_BYTES) std::byte bytes[HWY_MAX_BYTES];
  };
  std::size_t bytes_;
};

template <typename Codec, typename Op>
class Reducer {
 public:
  static void Run(const ReduceArguments& arguments) {
    [[maybe_unused]] const Environment environment;
    const Reducer reducer(arguments);
    const std::size_t end = arguments.elements * sizeof(Storage);
    std::size_t at = arguments.streaming ? reducer.ReduceStreaming(end) : 0;
    for (; end - at >= kBlock; at += kBlock)
      reducer.template ReduceAt<kVectorsPerBlock>(at, WholeAccess());
    if (at != end) ReduceShort(arguments, at, end);
  }

 private:
  using Storage = typename Codec::Storage;
  using DStored = typename Codec::DStored;
  using Value = hn::Vec<typename Codec::DValue>;
  using Accumulator = typename Codec::Accumulator;
  using Divisor = std::conditional_t<Op::kMean, MeanDivisor<Accumulator>, NoDivisor>;
  struct NoEnvironment {};
  using Environment = std::conditional_t<std::is_floating_point_v<Accumulator>,
                                         DefaultFloatEnvironment, NoEnvironment>;
  static constexpr int kParts = Codec::kParts;
  // Enough independent additions to hide their latency, and few enough accumulators for registers.
  // A vector of EMU128 is an array, which gains nothing by it and takes long to compile.
  static constexpr int kVectorsPerBlock = HWY_TARGET == HWY_EMU128 ? 1 : 4 / kParts;
  static constexpr std::size_t kStep = hn::MaxLanes(DStored()) * sizeof(hn::TFromD<DStored>);
  static constexpr std::size_t kBlock = kStep * kVectorsPerBlock;
  // What may not be torn apart.
  static constexpr std::size_t kUnit = sizeof(Storage) * (Op::kComplex ? 2 : 1);
  static constexpr std::size_t kLine = 64;

  explicit Reducer(const ReduceArguments& arguments)
      : arguments_(arguments), divisor_(arguments.divisor) {}

  /// Reduces all but the last few of `end` bytes with stores that bypass the cache, and says how
  /// many it did: 0 where `dst` cannot be brought to the beginning of a cache line.
  HWY_INLINE std::size_t ReduceStreaming(std::size_t end) const {
    const std::size_t past = reinterpret_cast<std::uintptr_t>(arguments_.dst) % kLine;
    std::size_t at = past == 0 ? 0 : kLine - past;
    if (at % kUnit != 0 || end < at + kBlock) return 0;
    if (at != 0) ReduceShort(arguments_, 0, at);
    for (; end - at >= kBlock; at += kBlock) ReduceAt<kVectorsPerBlock>(at, StreamingAccess());
    // These stores are not ordered by the release stores that announce the data.
    hwy::FlushStream();
    return at;
  }

  /// Reduces what is less than a block, or than a cache line. Not inlined, to be compiled once, and
  /// static, so that the members of the caller's reducer stay in registers.
  static HWY_NOINLINE void ReduceShort(const ReduceArguments& arguments, std::size_t at,
                                       std::size_t end) {
    const Reducer reducer(arguments);
    for (; end - at >= kStep; at += kStep) reducer.template ReduceAt<1>(at, WholeAccess());
    if (at != end) reducer.template ReduceAt<1>(at, PartialAccess(end - at));
  }

  /// Reduces `kVectors` vectors that start `at` bytes into the buffers. All sources are read before
  /// anything is written, because `dst` may be any of them.
  template <int kVectors, typename Access>
  HWY_INLINE void ReduceAt(std::size_t at, Access access) const {
    Value sums[kVectors][kParts];
    for (int i = 0; i < kVectors; ++i) ReadTerm(0, at + i * kStep, access, sums[i]);
    for (int source = 1; source < arguments_.source_count; ++source) {
      for (int i = 0; i < kVectors; ++i) {
        Value term[kParts];
        ReadTerm(source, at + i * kStep, access, term);
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
      access.Store(DStored(), arguments_.dst + at + i * kStep, Codec::Encode(sums[i]));
    }
  }

  template <typename Access>
  HWY_INLINE void ReadTerm(int source, std::size_t at, Access access, Value (&term)[kParts]) const {
    Codec::Decode(access.Load(DStored(), arguments_.sources[source] + at), term);
    if constexpr (Op::kPremultiplied) {
      const auto factor = static_cast<Accumulator>(arguments_.factors[source]);
      for (Value& part : term) part = hn::Mul(part, hn::Set(typename Codec::DValue(), factor));
    }
  }

  const ReduceArguments arguments_;
  [[no_unique_address]] const Divisor divisor_;
};

/// The kernel of a floating-point type; null for bitwise operations.
template <typename Codec>
ReduceKernel FindFloating(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return Reducer<Codec, Sum>::Run;
    case ReduceOp::kAvg:
      return Reducer<Codec, Average>::Run;
    case ReduceOp::kPremulSum:
      return Reducer<Codec, PremultipliedSum>::Run;
    case ReduceOp::kMin:
      return Reducer<Codec, Min>::Run;
    case ReduceOp::kMax:
      return Reducer<Codec, Max>::Run;
    case ReduceOp::kProduct:
      return Reducer<Codec, Product>::Run;
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
    case ReduceOp::kNone:
      break;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace tidegate
HWY_AFTER_NAMESPACE();

#endif  // TIDEGATE_KERNELS_REDUCER_INL_H
