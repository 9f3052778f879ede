// lazy::swiglu: silu(gate) * up = gate / (1 + exp(-gate)) * up, computed in fp32.
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

namespace lazy::ops {

// gate, up (..., dim), same shape and type (fp32 or bf16, on a GPU fp16 too); rows may be strided, so the two halves of
// one product's result (chunk(2, -1)) need no copy. Returns a contiguous tensor of that shape. Differentiable in both.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// (d_gate, d_up) from the gradient of its result; for nodes of the graph that contain more than SwiGLU.
std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& d_y, const at::Tensor& gate, const at::Tensor& up);

}  // namespace lazy::ops
