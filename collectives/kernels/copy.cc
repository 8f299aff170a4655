#include "collectives/kernels/copy.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "collectives/kernels/copy_isa.h"

namespace tidegate {
namespace {

#if defined(__x86_64__)

constexpr std::size_t kLine = 64;

// Each copies whole cache lines to `dst`, which is aligned to one; `src` need not be. A line is
// written completely before the next, so that a write-combining buffer leaves in one transfer.
using LineCopy = void (*)(std::byte* dst, const std::byte* src, std::size_t lines);

void CopyLinesSse2(std::byte* dst, const std::byte* src, std::size_t lines) {
  for (; lines != 0; --lines, dst += kLine, src += kLine) {
    const auto* in = reinterpret_cast<const __m128i_u*>(src);
    auto* out = reinterpret_cast<__m128i*>(dst);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
}

[[gnu::target("avx2")]] void CopyLinesAvx2(std::byte* dst, const std::byte* src,
                                           std::size_t lines) {
  for (; lines != 0; --lines, dst += kLine, src += kLine) {
    const auto* in = reinterpret_cast<const __m256i_u*>(src);
    auto* out = reinterpret_cast<__m256i*>(dst);
    const __m256i a = _mm256_loadu_si256(in);
    const __m256i b = _mm256_loadu_si256(in + 1);
    _mm256_stream_si256(out, a);
    _mm256_stream_si256(out + 1, b);
  }
}

[[gnu::target("avx512f")]] void CopyLinesAvx512(std::byte* dst, const std::byte* src,
                                                std::size_t lines) {
  for (; lines != 0; --lines, dst += kLine, src += kLine)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), _mm512_loadu_si512(src));
}

LineCopy LineCopyFor(Isa isa) {
  if (isa == Isa::kAvx512) return CopyLinesAvx512;
  if (isa == Isa::kAvx2) return CopyLinesAvx2;
  return CopyLinesSse2;
}

#endif

}  // namespace

void StreamingCopyFor([[maybe_unused]] Isa isa, std::byte* dst, const std::byte* src,
                      std::size_t bytes) {
  if (bytes == 0) return;  // Null pointers are allowed then, but not by memcpy.
#if defined(__x86_64__)
  const std::size_t past_line = reinterpret_cast<std::uintptr_t>(dst) % kLine;
  const std::size_t to_line = past_line == 0 ? 0 : kLine - past_line;
  const std::size_t head = to_line < bytes ? to_line : bytes;
  std::memcpy(dst, src, head);
  const std::size_t lines = (bytes - head) / kLine;
  LineCopyFor(isa)(dst + head, src + head, lines);
  const std::size_t copied = head + lines * kLine;
  std::memcpy(dst + copied, src + copied, bytes - copied);
  // Non-temporal stores are not ordered by the release stores that announce the data.
  _mm_sfence();
#else
  std::memcpy(dst, src, bytes);
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

void StreamingCopy(std::byte* dst, const std::byte* src, std::size_t bytes) {
  StreamingCopyFor(BestIsa(), dst, src, bytes);
}

}  // namespace tidegate
