// The instruction sets for which the kernels are compiled: the compiler's baseline, AVX2 and AVX-512. All others are
// disabled, because each instruction set adds a copy of the code. The best available instruction set is chosen at run
// time. The scalable targets of Highway (SVE) do not support arrays of vectors, which the register blocks need.
#pragma once
#include "hwy/detect_targets.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
