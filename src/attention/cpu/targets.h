// The instruction sets that the kernels are compiled for: the compiler's baseline, AVX2 and AVX-512, few because each
// is a copy of the code. The best one present is chosen at run time. Highway's scalable targets cannot hold register
// blocks.
#pragma once
#include "hwy/detect_targets.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
