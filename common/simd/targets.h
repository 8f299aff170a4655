#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

// Internal to the folders with kernels, their tests and their benchmarks.

namespace tidegate {

/// An instruction set that kernels are compiled for: one HWY_* bit of Highway, the better the
/// smaller. What a kernel computes is the same on all, bit for bit (but for the payload of a NaN),
/// so that ranks on different machines agree and a run resumes elsewhere as it was.
using KernelTarget = std::int64_t;

/// Those that this build holds kernels for, best first; the last runs everywhere.
std::vector<KernelTarget> KernelTargets();
/// Whether this CPU and operating system run it.
bool IsSupported(KernelTarget target);
/// The best that is supported, or the one that UseKernelTarget() chose.
KernelTarget BestTarget();
/// "AVX3" (AVX-512 F, BW, DQ and VL), "AVX2" (with F16C and FMA), "SSE4", "NEON", "EMU128", ...
std::string_view NameOfTarget(KernelTarget target);
/// From now on whoever looks for a kernel without naming a target gets this one; 0: the best again.
/// For measurements; not while another thread uses the kernels. REQUIRES: IsSupported(target) or 0.
void UseKernelTarget(KernelTarget target);

}  // namespace tidegate
