// Runs a case of tests/attention on the GPU: copies in, poisons outputs and workspace with NaN, copies back.
#pragma once
#include <string>

#include "../case.h"
#include "lazy/attention_cuda.h"

namespace lazy::kernels::test {

struct CudaRun {
  CudaKernel kernel = CudaKernel::automatic;
  bool deterministic = false;
};

bool has_gpu();
std::string why_no_gpu();  // "no NVIDIA GPU", or that this build has no CUDA kernels
// What run_cuda(shape, inputs) uses.
CudaRun& current_run();
Results run_cuda(const Shape& shape, const Inputs& inputs);

}  // namespace lazy::kernels::test
