// Backward pass of attention with RoPE on NVIDIA GPUs. The attention kernels apply the inverse rotation if they support
// it; otherwise a separate kernel does.
#include "ops/attention_cuda.h"
#include "ops/cuda_library.h"
#include "ops/cuda_stream.h"
#include "ops/rope_cuda.h"

namespace lazy::ops {

namespace {

void rotated_backward(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out,
                      const at::Tensor& lse, const OptionalTensor& alive_sum, const RopeArguments& rope,
                      AttentionGradients& g) {
  const DeviceGuard guard(a.q);
  if (!rope.interleaved && rope.rotary_dim == a.q.size(-1) && rope.offset == 0 && rotates_back(a)) {
    const cuda::RopeTable table = rope_table(rope, a.q.size(1), a.q.get_device());
    run_attention_backward(a, d_out, out, lse, alive_sum, {table.cos, table.sin}, g);
    return;
  }
  AttentionGradients rotated = g;
  rotated.q = at::empty(g.q.sizes(), g.q.options());
  rotated.k = at::empty(g.k.sizes(), g.k.options());
  run_attention_backward(a, d_out, out, lse, alive_sum, {}, rotated);
  rope_into(rotated.q, rope, true, {}, g.q);
  rope_into(rotated.k, rope, true, {}, g.k);
}

const bool rotated_attention_registered = [] {
  cuda_library().rotated_backward = rotated_backward;
  return true;
}();

}  // namespace

}  // namespace lazy::ops
