// Replaces CUDA's cuda.h in the emulator, with the types that the headers of the Hopper kernels use.
#pragma once
struct CUtensorMap {};
