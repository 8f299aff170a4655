// What memory allows a step of AdamW: four streams are read and three are written, with next to no
// arithmetic. A library of its own, which scripts/bench_offload.sh compiles for this very machine
// and `tidegate bench optimizer --ceiling` calls by ctypes in turn with the optimizers.

#include <cstddef>

namespace {

constexpr std::ptrdiff_t kLineFloats = 16;

/// One pass over [begin, end), prefetching `ahead` elements ahead; 0: what the processor does
/// alone.
void Pass(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v,
          std::ptrdiff_t begin, std::ptrdiff_t end, std::ptrdiff_t ahead) {
  std::ptrdiff_t i = begin;
  for (; i + kLineFloats <= end; i += kLineFloats) {
    if (ahead > 0) {
      // Beyond the end is no fault.
      __builtin_prefetch(p + i + ahead, 1);
      __builtin_prefetch(g + i + ahead, 0);
      __builtin_prefetch(m + i + ahead, 1);
      __builtin_prefetch(v + i + ahead, 1);
    }
#pragma omp simd
    for (std::ptrdiff_t lane = i; lane < i + kLineFloats; ++lane) {
      m[lane] = 0.5F * m[lane] + g[lane];
      v[lane] = 0.5F * v[lane] + g[lane];
      p[lane] = p[lane] + 1e-6F * (m[lane] + v[lane]);
    }
  }
  for (; i < end; ++i) {
    m[i] = 0.5F * m[i] + g[i];
    v[i] = 0.5F * v[i] + g[i];
    p[i] = p[i] + 1e-6F * (m[i] + v[i]);
  }
}

}  // namespace

/// `count` elements of each stream, in as many contiguous parts as there are OpenMP threads.
extern "C" void tidegate_bench_ceiling(float* p, const float* g, float* m, float* v,
                                       std::ptrdiff_t count, std::ptrdiff_t ahead, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int part = 0; part < threads; ++part) {
    // At lines, so that no two threads write to one.
    const std::ptrdiff_t lines = (count + kLineFloats - 1) / kLineFloats;
    const std::ptrdiff_t begin = lines * part / threads * kLineFloats;
    const std::ptrdiff_t end = lines * (part + 1) / threads * kLineFloats;
    Pass(p, g, m, v, begin, end < count ? end : count, ahead);
  }
}
