// Backward pass of an attention softmax whose keys are processed in several parts: computes the gradients for one part
// of the keys on NVIDIA GPUs (CudaLibrary::softmax_part_backward in ops/cuda_library.h).
#include "ops/attention_cuda.h"
#include "ops/cuda_library.h"
#include "ops/forced_kernel.h"

namespace lazy::ops {

namespace {

bool softmax_part_backward(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out,
                           const at::Tensor& lse, AttentionGradients& g) {
  return !reference_is_forced(a) && run_attention_backward(a, d_out, out, lse, {}, {}, g, /*of_part=*/true);
}

const bool softmax_part_registered = [] {
  cuda_library().softmax_part_backward = softmax_part_backward;
  return true;
}();

}  // namespace

}  // namespace lazy::ops
