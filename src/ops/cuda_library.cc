#include "ops/cuda_library.h"

#include "ops/kernel_support.h"

namespace lazy::ops {

CudaLibrary& cuda_library() {
  static CudaLibrary library;
  return library;
}

std::string cuda_attention_kernel(const kernels::Problem& problem) { return cuda_library().attention_kernel(problem); }

}  // namespace lazy::ops
