#pragma once

#include <initializer_list>
#include <string_view>

// Internal to collectives/kernels and its tests.

namespace tidegate {

/// Instruction sets that kernels are compiled for, each a superset of those before it. What a
/// kernel computes is the same on all, bit for bit (but for the payload of a NaN), so that ranks on
/// different machines agree.
enum class Isa {
  kBaseline,  ///< What the compiler may use anyway.
  kAvx2,      ///< With F16C.
  kAvx512,    ///< F, BW, DQ and VL.
};
inline constexpr std::initializer_list<Isa> kAllIsas = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512};

/// "AVX2", ...
std::string_view NameOf(Isa isa);
/// Whether this build holds kernels for `isa` and this CPU and operating system run them.
bool IsaSupported(Isa isa);
/// The last supported one; looked up once.
Isa BestIsa();

}  // namespace tidegate
