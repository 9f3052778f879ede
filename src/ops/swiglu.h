// lazy::swiglu: silu(gate) * up = gate / (1 + exp(-gate)) * up, computed in fp32.
#pragma once
#include <tuple>

#include "ops/tensor.h"

namespace lazy::ops {

// gate, up (..., dim), same shape and type (fp32 or bf16, on a GPU fp16 too); rows may be strided, so the two halves of
// one projection (chunk(2, -1)) need no copy. Returns a contiguous tensor of that shape. Differentiable in both.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// (d_gate, d_up) from the gradient of the result, for larger autograd functions that contain SwiGLU.
std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& d_y, const at::Tensor& gate, const at::Tensor& up);

// The same for gate_up (..., 2 dim), gate's columns before up's. Returns its gradient and, with `recompute`, the result
// itself, else a tensor without elements: one pass over memory for both.
std::tuple<at::Tensor, at::Tensor> swiglu_halves_backward(const at::Tensor& d_y, const at::Tensor& gate_up,
                                                          bool recompute);

// For the CPU and CUDA implementations. Checks throw "lazy::swiglu: expected ..., received ..." and do not read data.
void check_swiglu(const at::Tensor& gate, const at::Tensor& up);
void check_swiglu_backward(const at::Tensor& d_y, const at::Tensor& gate, const at::Tensor& up);
void check_swiglu_halves_backward(const at::Tensor& d_y, const at::Tensor& gate_up);

// Uninitialized results of swiglu_halves_backward.
std::tuple<at::Tensor, at::Tensor> empty_halves_gradients(const at::Tensor& d_y, const at::Tensor& gate_up,
                                                          bool recompute);

// As (rows, dim) with contiguous dims; a view for halves of a wider tensor.
at::Tensor as_rows(const at::Tensor& t);

}  // namespace lazy::ops
