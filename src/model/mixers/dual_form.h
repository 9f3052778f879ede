// Weights that take a gradient step at every token, read at every token without forming any of them: the dual form of
// test-time training (arXiv 2407.04620), which TTT and Titans share.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy {

// Within a chunk of T tokens the weights are W_t = keep_t W + carry_t S - sum_{s <= t} steps_ts u_s^T g_s, where W and
// S
// (..., in, out) are known at its start and u_s^T g_s is the gradient at token s.
struct DualForm {
  at::Tensor keep;   // (..., T, 1); undefined: 1
  at::Tensor carry;  // (..., T, 1); undefined: no S
  at::Tensor steps;  // (..., T, T), lower triangular
};

// x_t W_t for every t: x (..., T, in), u (..., T, in), g (..., T, out) -> (..., T, out). `bias` adds that of weights
// whose inputs end in a 1: `b` and `b_S` (..., 1, out) are then their last rows.
struct BiasRows {
  at::Tensor b, b_S;
};
at::Tensor read(const DualForm& form, const at::Tensor& x, const at::Tensor& W, const at::Tensor& S,
                const at::Tensor& u, const at::Tensor& g, const BiasRows& bias = {});

}  // namespace lazy
