// Replaces CUDA's cuda.h in the CPU emulator that runs CUDA kernels in tests, with the types that the headers of the
// Hopper kernels use.
#pragma once
struct CUtensorMap {};
