// The CUDA operators live in a library of their own, liblazy_ops_cuda.so beside liblazy_ops.so, because PyTorch's CUDA
// libraries (gigabytes, a second to load) are wanted only where there is a GPU. A process that has them already, such as
// Python after `import torch`, gets the operators when liblazy_ops.so is loaded; others call load_cuda().
#pragma once
#include <string>

#include "lazy/attention.h"

namespace lazy::ops {

// Loads PyTorch's CUDA libraries and the CUDA operators, once. Throws std::runtime_error that says what is missing: a GPU,
// a library, or CUDA kernels in this build.
void load_cuda();

// What liblazy_ops_cuda.so tells about its kernels: "plain", "portable", "hopper", or "automatic" for any.
struct CudaKernels {
  // One line; empty when the kernel serves the problem on the current GPU.
  std::string (*unmet_condition)(const kernels::Problem& problem, const std::string& kernel) = nullptr;
  // The name of the kernel that is taken.
  std::string (*chosen)(const kernels::Problem& problem) = nullptr;
};
// Null until the library is loaded.
const CudaKernels* cuda_kernels();
void set_cuda_kernels(const CudaKernels& kernels);  // called by the library

}  // namespace lazy::ops
