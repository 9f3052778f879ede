// The tolerance of tests/attention, with the GPU in the place of the CPU kernels.
#include "run_cuda.h"
#define run_fast run_cuda
#include "../compare.cc"
