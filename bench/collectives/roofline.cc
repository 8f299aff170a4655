#include "bench/collectives/roofline.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "collectives/kernels/copy.h"

namespace tidegate::bench {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kFloatsPerLine = kLine / sizeof(float);

void SumRest(float* dst, const float* src, int blocks, std::size_t floats, std::size_t from) {
  for (std::size_t i = from; i < floats; ++i) {
    float sum = src[i];
    for (int block = 1; block < blocks; ++block)
      sum += src[static_cast<std::size_t>(block) * floats + i];
    dst[i] = sum;
  }
}

#if defined(__x86_64__)

// Each sums whole cache lines and returns how many floats that were.

template <Stores kStores>
[[gnu::target("avx512f")]] std::size_t SumLinesAvx512(float* dst, const float* src, int blocks,
                                                      std::size_t floats) {
  std::size_t i = 0;
  for (; i + kFloatsPerLine <= floats; i += kFloatsPerLine) {
    __m512 sum = _mm512_loadu_ps(src + i);
    for (int block = 1; block < blocks; ++block)
      sum = _mm512_add_ps(sum, _mm512_loadu_ps(src + static_cast<std::size_t>(block) * floats + i));
    if constexpr (kStores == Stores::kStreaming)
      _mm512_stream_ps(dst + i, sum);
    else
      _mm512_store_ps(dst + i, sum);
  }
  return i;
}

template <Stores kStores>
[[gnu::target("avx2")]] std::size_t SumLinesAvx2(float* dst, const float* src, int blocks,
                                                 std::size_t floats) {
  std::size_t i = 0;
  for (; i + kFloatsPerLine <= floats; i += kFloatsPerLine) {
    __m256 low = _mm256_loadu_ps(src + i);
    __m256 high = _mm256_loadu_ps(src + i + 8);
    for (int block = 1; block < blocks; ++block) {
      const float* const more = src + static_cast<std::size_t>(block) * floats + i;
      low = _mm256_add_ps(low, _mm256_loadu_ps(more));
      high = _mm256_add_ps(high, _mm256_loadu_ps(more + 8));
    }
    // A whole line at once, so that its write-combining buffer leaves in one transfer.
    if constexpr (kStores == Stores::kStreaming) {
      _mm256_stream_ps(dst + i, low);
      _mm256_stream_ps(dst + i + 8, high);
    } else {
      _mm256_store_ps(dst + i, low);
      _mm256_store_ps(dst + i + 8, high);
    }
  }
  return i;
}

template <Stores kStores>
std::size_t SumLines(float* dst, const float* src, int blocks, std::size_t floats) {
  if (__builtin_cpu_supports("avx512f")) return SumLinesAvx512<kStores>(dst, src, blocks, floats);
  if (__builtin_cpu_supports("avx2")) return SumLinesAvx2<kStores>(dst, src, blocks, floats);
  return 0;
}

#endif

}  // namespace

void CopyOnce(Stores stores, std::byte* dst, const std::byte* src, std::size_t bytes) {
  if (stores == Stores::kStreaming)
    StreamingCopy(dst, src, bytes);
  else
    std::memcpy(dst, src, bytes);
}

void SumOnce([[maybe_unused]] Stores stores, std::byte* dst, const std::byte* src, int blocks,
             std::size_t bytes) {
  auto* const out = reinterpret_cast<float*>(dst);
  const auto* const in = reinterpret_cast<const float*>(src);
  const std::size_t floats = bytes / sizeof(float);
  std::size_t done = 0;
#if defined(__x86_64__)
  done = stores == Stores::kStreaming ? SumLines<Stores::kStreaming>(out, in, blocks, floats)
                                      : SumLines<Stores::kPlain>(out, in, blocks, floats);
  _mm_sfence();
#endif
  SumRest(out, in, blocks, floats, done);
}

}  // namespace tidegate::bench
