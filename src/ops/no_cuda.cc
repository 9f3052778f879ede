// Stands where the CUDA kernels will: CUDA tensors get a clear error from every operator.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace lazy::ops {

namespace {

void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK(false, op.schema().name(), ": expected tensors on the CPU, received CUDA tensors: this build has no CUDA kernels");
}

}  // namespace

TORCH_LIBRARY_IMPL(lazy, CUDA, m) {
  for (const char* name : {"attention", "attention_backward", "decode", "rms_norm", "add_rms_norm", "rms_norm_backward", "swiglu",
                           "swiglu_backward", "rope", "linear_cross_entropy", "linear_cross_entropy_and_gradients"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

}  // namespace lazy::ops
