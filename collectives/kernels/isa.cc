#include "collectives/kernels/isa.h"

namespace tidegate {

std::string_view NameOf(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "AVX2";
    case Isa::kAvx512:
      return "AVX512";
  }
  return "unknown instruction set";
}

bool IsaSupported(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == Isa::kAvx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (isa == Isa::kAvx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return isa == Isa::kBaseline;
}

Isa BestIsa() {
  static const Isa best = [] {
    Isa last = Isa::kBaseline;
    for (Isa isa : kAllIsas)
      if (IsaSupported(isa)) last = isa;
    return last;
  }();
  return best;
}

}  // namespace tidegate
