// How the linear recurrences' outputs leave: RMSNorm of every head, times silu(gate) where there is one.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy {

// o (B, L, H, V), weight (V), gate (B, L, H V) or undefined -> (B, L, H V).
at::Tensor output_norm(const at::Tensor& o, const at::Tensor& weight, double eps, const at::Tensor& gate);

}  // namespace lazy
