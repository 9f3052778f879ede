// Runs a case of tests/attention on the GPU: copies in, poisons outputs and workspace with NaN, copies back.
#pragma once
#include "../case.h"
#include "lazy/attention_cuda.h"

namespace lazy::kernels::test {

struct CudaRun {
  CudaKernel kernel = CudaKernel::automatic;
  bool deterministic = false;
};

bool has_gpu();
// What run_cuda(shape, inputs) uses.
CudaRun& current_run();
Results run_cuda(const Shape& shape, const Inputs& inputs);

}  // namespace lazy::kernels::test
