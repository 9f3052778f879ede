// SwiGLU (Shazeer 2020): silu(gate) * up.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy {

// gate, up (..., I), rows may be strided.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace lazy
