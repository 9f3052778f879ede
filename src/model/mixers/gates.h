// Decay gates and the gated output norm of linear recurrences. Dimensions: B batch, L length, H heads, V value_dim.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace lazy {

// Returns softplus(x + dt_bias), with x (B, L, H) and dt_bias (H).
at::Tensor step_size(const at::Tensor& x, const at::Tensor& dt_bias);
at::Tensor log_decay(const at::Tensor& step, const at::Tensor& A_log);  // returns -exp(A_log) * step, with A_log (H)

// Initialize `tensor` in place. A is uniform in [low, high]; the step size is log-uniform in [1e-3, 0.1].
void init_A_log(at::Tensor& tensor, double low, double high, at::Generator& generator);
void init_dt_bias(at::Tensor& tensor, at::Generator& generator);

// Normalizes o (B, L, H, V) with `weight` (V) and multiplies it by the gate (B, L, H V), if defined. Returns (B, L, H
// V).
at::Tensor output_norm(const at::Tensor& o, const at::Tensor& weight, double eps, const at::Tensor& gate);

}  // namespace lazy
