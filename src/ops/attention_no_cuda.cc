// Stands where the CUDA kernels will: CUDA tensors get a clear error.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/attention_kernels.h"

namespace lazy::ops {

namespace {

[[noreturn]] void refuse() {
  TORCH_CHECK(false, "lazy::attention: expected tensors on the CPU, received CUDA tensors: this build has no CUDA kernels");
}

AttentionOutputs attention_cuda(LAZY_ATTENTION_PARAMETERS) { refuse(); }
BackwardOutputs attention_backward_cuda(LAZY_ATTENTION_BACKWARD_PARAMETERS) { refuse(); }

}  // namespace

TORCH_LIBRARY_IMPL(lazy, CUDA, m) {
  m.impl("attention", attention_cuda);
  m.impl("attention_backward", attention_backward_cuda);
}

}  // namespace lazy::ops
