#include "collectives/kernels/copy.h"

#include "common/simd/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/kernels/copy.cc"
#include <hwy/foreach_target.h>
// After the loop over targets.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tidegate {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void StreamingCopyHere(std::byte* dst, const std::byte* src, std::size_t bytes) {
  if (bytes == 0) return;  // Null pointers are allowed then, but not by memcpy.
  constexpr std::size_t kLine = 64;
  const std::size_t past_line = reinterpret_cast<std::uintptr_t>(dst) % kLine;
  const std::size_t to_line = past_line == 0 ? 0 : kLine - past_line;
  const std::size_t head = to_line < bytes ? to_line : bytes;
  std::memcpy(dst, src, head);

  // A line is written completely before the next, so that a write-combining buffer leaves in one
  // transfer.
  const hn::ScalableTag<std::uint8_t> d;
  constexpr std::size_t kStep = hn::MaxLanes(d);
  constexpr std::size_t kSteps = kLine / kStep;
  std::size_t at = head;
  for (; bytes - at >= kLine; at += kLine) {
    const auto* in = reinterpret_cast<const std::uint8_t*>(src) + at;
    auto* out = reinterpret_cast<std::uint8_t*>(dst) + at;
    hn::Vec<decltype(d)> line[kSteps];
    for (std::size_t i = 0; i < kSteps; ++i) line[i] = hn::LoadU(d, in + i * kStep);
    for (std::size_t i = 0; i < kSteps; ++i) hn::Stream(line[i], d, out + i * kStep);
  }

  std::memcpy(dst + at, src + at, bytes - at);
  // Non-temporal stores are not ordered by the release stores that announce the data.
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace tidegate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "collectives/kernels/copy_targets.h"
#include "common/simd/dispatch.h"

namespace tidegate {

HWY_EXPORT(StreamingCopyHere);

void StreamingCopyFor(KernelTarget target, std::byte* dst, const std::byte* src,
                      std::size_t bytes) {
  ForTarget(HWY_DISPATCH_TABLE(StreamingCopyHere), target)(dst, src, bytes);
}

void StreamingCopy(std::byte* dst, const std::byte* src, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(StreamingCopyHere)(dst, src, bytes);
}

}  // namespace tidegate

#endif  // HWY_ONCE
