// Decay gates and the gated output norm that are shared by linear recurrences.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace lazy {

at::Tensor step_size(const at::Tensor& x, const at::Tensor& dt_bias);   // x (B, L, H), dt_bias (H)
at::Tensor log_decay(const at::Tensor& step, const at::Tensor& A_log);  // A_log (H)

// In-place initialization: A uniform in [low, high]; steps log-uniform in [1e-3, 0.1].
void init_A_log(at::Tensor& tensor, double low, double high, at::Generator& generator);
void init_dt_bias(at::Tensor& tensor, at::Generator& generator);

// o (B, L, H, V), weight (V), gate (B, L, H V) or undefined -> (B, L, H V).
at::Tensor output_norm(const at::Tensor& o, const at::Tensor& weight, double eps, const at::Tensor& gate);

}  // namespace lazy
