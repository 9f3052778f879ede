// Decay gates and the gated output norm of linear recurrences. Dimensions: B batch, L length, H heads, V value_dim.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace lazy {

// Returns softplus(x + dt_bias), with x (B, L, H) and dt_bias (H).
at::Tensor step_size(const at::Tensor& x, const at::Tensor& dt_bias);
at::Tensor log_decay(const at::Tensor& step, const at::Tensor& A_log);  // returns -exp(A_log) * step, with A_log (H)

// Initialize `tensor`, the parameter A_log or dt_bias, in place. exp(A_log) is uniform in [low, high]; the step size
// softplus(dt_bias) is log-uniform in [1e-3, 0.1].
void init_A_log(at::Tensor& tensor, double low, double high, at::Generator& generator);
void init_dt_bias(at::Tensor& tensor, at::Generator& generator);

// Returns the RMSNorm of each head of o (B, L, H, V), with the weight (V), multiplied by silu(gate) if the gate (B, L,
// H V) is defined. The result has the shape (B, L, H V).
at::Tensor output_norm(const at::Tensor& o, const at::Tensor& weight, double eps, const at::Tensor& gate);

}  // namespace lazy
