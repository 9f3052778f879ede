// lazy::swiglu and swiglu_backward on NVIDIA GPUs.
#include "ops/cuda/rows.h"
#include "ops/cuda_stream.h"
#include "ops/fused.h"
#include "ops/swiglu.h"

namespace lazy::ops {

namespace {

using Pair = std::tuple<at::Tensor, at::Tensor>;

cuda::Swiglu inputs(const at::Tensor& gate, const at::Tensor& up) {  // gate, up: (rows, dim)
  cuda::Swiglu a{.type = row_type("swiglu", gate)};
  a.gate = gate.const_data_ptr();
  a.up = up.const_data_ptr();
  a.gate_stride = gate.stride(0);
  a.up_stride = up.stride(0);
  a.rows = gate.size(0);
  a.dim = gate.size(1);
  return a;
}

at::Tensor swiglu_forward_cuda(const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu(gate, up);
  const DeviceGuard guard(gate);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  if (y.numel() == 0) return y;
  const at::Tensor g = as_rows(gate), u = as_rows(up);
  cuda::Swiglu a = inputs(g, u);
  a.y = y.mutable_data_ptr();
  cuda::swiglu(a, current_stream());
  return y;
}

Pair swiglu_backward_cuda(const at::Tensor& d_y, const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu_backward(d_y, gate, up);
  const DeviceGuard guard(gate);
  at::Tensor d_gate = at::empty(gate.sizes(), gate.options()), d_up = at::empty(gate.sizes(), gate.options());
  if (d_y.numel() == 0) return {d_gate, d_up};
  const at::Tensor dy = d_y.contiguous(), g = as_rows(gate), u = as_rows(up);
  cuda::Swiglu a = inputs(g, u);
  a.d_y = dy.const_data_ptr();
  a.d_gate = d_gate.mutable_data_ptr();
  a.d_up = d_up.mutable_data_ptr();
  a.d_stride = a.dim;
  cuda::swiglu_backward(a, current_stream());
  return {d_gate, d_up};
}

Pair halves_backward_cuda(const at::Tensor& d_y, const at::Tensor& gate_up, bool recompute) {
  check_swiglu_halves_backward(d_y, gate_up);
  const DeviceGuard guard(gate_up);
  auto [d_gate_up, y] = empty_halves_gradients(d_y, gate_up, recompute);
  if (d_y.numel() == 0) return {d_gate_up, y};
  const at::Tensor dy = d_y.contiguous(), rows = as_rows(gate_up);
  const auto in = rows.chunk(2, 1), out = as_rows(d_gate_up).chunk(2, 1);
  cuda::Swiglu a = inputs(in[0], in[1]);
  a.d_y = dy.const_data_ptr();
  a.d_gate = out[0].mutable_data_ptr();
  a.d_up = out[1].mutable_data_ptr();
  a.d_stride = 2 * a.dim;
  if (recompute) a.y = y.mutable_data_ptr();
  cuda::swiglu_backward(a, current_stream());
  return {d_gate_up, y};
}

}  // namespace

LAZY_KERNELS(CUDA, m) {
  m.impl("swiglu", LAZY_KERNEL(swiglu_forward_cuda));
  m.impl("swiglu_backward", LAZY_KERNEL(swiglu_backward_cuda));
  m.impl("swiglu_halves_backward", LAZY_KERNEL(halves_backward_cuda));
}

}  // namespace lazy::ops
