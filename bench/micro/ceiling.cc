#include "common/simd/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/micro/ceiling.cc"
#include <hwy/foreach_target.h>
// After the loop over targets.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace tidegate::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void Fetch(const float* at, std::size_t ahead) {
  // As an integer, because it may lie beyond the end. NOLINTNEXTLINE(performance-no-int-to-ptr)
  hwy::Prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(at) + ahead));
}

template <int kStreams, bool kFetch>
void CeilingOf(const float* gradient, float* const* streams, std::size_t count, std::size_t ahead) {
  const hn::ScalableTag<float> d;
  constexpr std::size_t kLine = 16;
  float* at[kStreams];
  for (int i = 0; i < kStreams; ++i) at[i] = streams[i];
  for (std::size_t line = 0; line < count; line += kLine) {
    if (kFetch) {
      Fetch(gradient + line, ahead);
      for (int i = 0; i < kStreams; ++i) Fetch(at[i] + line, ahead);
    }
    for (std::size_t lane = 0; lane < kLine; lane += hn::Lanes(d)) {
      const auto g = hn::LoadU(d, gradient + line + lane);
      for (int i = 0; i < kStreams; ++i) {
        float* const here = at[i] + line + lane;
        hn::StoreU(hn::Add(hn::LoadU(d, here), g), d, here);
      }
    }
  }
}

template <int kStreams>
void CeilingOf(const float* gradient, float* const* streams, std::size_t count, std::size_t ahead) {
  if (ahead != 0)
    CeilingOf<kStreams, true>(gradient, streams, count, ahead);
  else
    CeilingOf<kStreams, false>(gradient, streams, count, ahead);
}

using CeilingFunction = void (*)(const float*, float* const*, std::size_t, std::size_t);

CeilingFunction FindCeilingHere(int streams) {
  switch (streams) {
    case 1:
      return CeilingOf<1>;
    case 2:
      return CeilingOf<2>;
    case 3:
      return CeilingOf<3>;
    default:
      return CeilingOf<4>;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tidegate::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "bench/micro/ceiling.h"
#include "common/simd/dispatch.h"

namespace tidegate::bench {

HWY_EXPORT(FindCeilingHere);

void RunCeiling(KernelTarget target, const float* gradient, float* const* streams, int stream_count,
                std::size_t count, std::size_t ahead) {
  const auto find = ForTarget(HWY_DISPATCH_TABLE(FindCeilingHere), target);
  find(stream_count)(gradient, streams, count, ahead);
}

}  // namespace tidegate::bench

#endif  // HWY_ONCE
