// lazy::swiglu: silu(gate) * up = gate / (1 + exp(-gate)) * up, computed in fp32.
#pragma once
#include <tuple>

#include "ops/tensor.h"

namespace lazy::ops {

// gate and up (..., dim) have the same shape and dtype (fp32 or bf16, on a GPU also fp16). Rows may be strided, so the
// two halves of one projection (chunk(2, -1)) need not be copied. Returns a contiguous tensor of this shape.
// Differentiable in gate and up.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// Returns (d_gate, d_up) from the gradient of the result, for autograd functions that include SwiGLU.
std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& d_y, const at::Tensor& gate, const at::Tensor& up);

// Like swiglu_backward, for gate_up (..., 2 dim), in which the columns of gate precede the columns of up. Returns the
// gradient of gate_up and, with `recompute`, the result of swiglu (otherwise a tensor without elements). Both are
// computed in one pass over memory.
std::tuple<at::Tensor, at::Tensor> swiglu_halves_backward(const at::Tensor& d_y, const at::Tensor& gate_up,
                                                          bool recompute);

// Only the CPU and CUDA implementations use the following declarations. The check functions throw "lazy::swiglu:
// expected ..., received ..." for invalid arguments, without reading tensor data.
void check_swiglu(const at::Tensor& gate, const at::Tensor& up);
void check_swiglu_backward(const at::Tensor& d_y, const at::Tensor& gate, const at::Tensor& up);
void check_swiglu_halves_backward(const at::Tensor& d_y, const at::Tensor& gate_up);

// Allocates the results of swiglu_halves_backward without initializing them.
std::tuple<at::Tensor, at::Tensor> empty_halves_gradients(const at::Tensor& d_y, const at::Tensor& gate_up,
                                                          bool recompute);

// Returns t in the shape (rows, dim) with a contiguous last axis. For one half of a wider tensor, the result is a view.
at::Tensor as_rows(const at::Tensor& t);

}  // namespace lazy::ops
