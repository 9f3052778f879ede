// SwiGLU (Shazeer 2020): silu(gate) * up.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy {

// gate_up (..., 2 I): gate first, up after it. Returns (..., I).
at::Tensor swiglu(const at::Tensor& gate_up);

}  // namespace lazy
