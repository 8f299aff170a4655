#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "collectives/kernels/copy_targets.h"
#include "collectives/kernels/reduce_targets.h"

// One thread, buffers of its own: reductions by dtype, number of sources and bytes of a source, and
// copies. GB/s (bytes_per_second) counts what is read and written once each.

namespace tidegate::bench {
namespace {

/// A buffer that begins with a cache line and whose pages are there.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : data_(new (kLine) std::byte[bytes]) {
    // 2^-126 times 1 + 2^-7 and the like in every float type: numbers, none of them subnormal.
    std::memset(data_.get(), 0x3c, bytes);
  }
  std::byte* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t kLine{64};
  struct Free {
    void operator()(std::byte* data) const { operator delete[](data, kLine); }
  };
  std::unique_ptr<std::byte[], Free> data_;
};

void Reduce(benchmark::State& state, KernelTarget target, DataType dtype, ReduceOp op,
            bool streaming) {
  const auto count = static_cast<std::size_t>(state.range(0));
  const auto bytes = static_cast<std::size_t>(state.range(1));
  std::vector<Buffer> buffers;
  std::vector<const std::byte*> sources;
  for (std::size_t i = 0; i < count; ++i) {
    buffers.emplace_back(bytes);
    sources.push_back(buffers.back().data());
  }
  const Buffer dst(bytes);
  const std::vector<double> factors(count, 0.5);
  const ReduceKernel kernel = FindReduceKernelFor(target, dtype, op);
  const ReduceArguments arguments = {.dst = dst.data(),
                                     .sources = sources.data(),
                                     .source_count = static_cast<int>(count),
                                     .elements = bytes / SizeOf(dtype),
                                     .factors = factors.data(),
                                     .divisor = static_cast<int>(count),
                                     .streaming = streaming};
  for ([[maybe_unused]] auto _ : state) {
    kernel(arguments);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                          static_cast<std::int64_t>((count + 1) * bytes));
}

void Copy(benchmark::State& state, bool streaming) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Buffer src(bytes);
  const Buffer dst(bytes);
  const KernelTarget target = KernelTargets().front();
  for ([[maybe_unused]] auto _ : state) {
    if (streaming)
      StreamingCopyFor(target, dst.data(), src.data(), bytes);
    else
      std::memcpy(dst.data(), src.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                          static_cast<std::int64_t>(2 * bytes));
}

void RegisterReduce(KernelTarget target, DataType dtype, ReduceOp op, bool streaming) {
  const std::string name = "reduce/" + std::string(NameOfTarget(target)) + "/" +
                           std::string(NameOf(dtype)) + "/" + std::string(NameOf(op)) +
                           (streaming ? "/streaming" : "");
  auto* const registered =
      benchmark::RegisterBenchmark(name.c_str(), Reduce, target, dtype, op, streaming);
  registered->ArgNames({"sources", "bytes"});
  for (const std::int64_t sources : {2, 4, 8})
    for (const std::int64_t kib : {64, 256, 1024, 16384})
      if (!streaming || kib >= 1024) registered->Args({sources, kib << 10});
}

// What throws ends the program. NOLINTNEXTLINE(bugprone-throwing-static-initialization)
const bool kRegistered = [] {
  for (const KernelTarget target : KernelTargets()) {
    if (!IsSupported(target)) continue;
    for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
      RegisterReduce(target, dtype, ReduceOp::kSum, false);
      RegisterReduce(target, dtype, ReduceOp::kSum, true);
      RegisterReduce(target, dtype, ReduceOp::kMax, false);
    }
    for (const DataType dtype : {DataType::kFloat64, DataType::kInt32, DataType::kInt64,
                                 DataType::kFloat8E4M3FN, DataType::kFloat8E5M2})
      RegisterReduce(target, dtype, ReduceOp::kSum, false);
  }
  for (const bool streaming : {false, true}) {
    auto* const copy =
        benchmark::RegisterBenchmark(streaming ? "copy/streaming" : "copy/memcpy", Copy, streaming);
    for (const std::int64_t kib : {64, 1024, 16384, 131072}) copy->Arg(kib << 10);
  }
  return true;
}();

}  // namespace
}  // namespace tidegate::bench
