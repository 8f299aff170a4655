#pragma once

// Which of Highway's targets kernels are compiled for. Included before any header of Highway by
// every file that uses it, so that all agree on the set.

// The baseline of gcc before 12.3 would be HWY_SCALAR, which has one lane and lacks half of the
// operations, because that gcc may compile the high half of a product on EMU128 wrongly (GCC bug
// 106322). No kernel takes one, and the tests hold every kernel of EMU128 against the reference.
#define HWY_BROKEN_EMU128 0

// SSSE3: no machine with it and without SSE4 runs a torch of today. SVE: its vectors have no size
// at compile time, so none can be an element of an array; its machines have NEON.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
