// Checks of the SwiGLU operators' arguments, without looking at data, and how their rows lie, for every device.
#pragma once
#include "ops/fused.h"

namespace lazy::ops {

inline void check_swiglu(const at::Tensor& gate, const at::Tensor& up) {
  row_type("swiglu", gate);
  LAZY_CHECK("swiglu", gate.dim() >= 1, "gate of at least one dimension, received a scalar");
  check_like("swiglu", "up", up, "gate", gate);
}

inline void check_swiglu_backward(const at::Tensor& d_y, const at::Tensor& gate, const at::Tensor& up) {
  check_swiglu(gate, up);
  check_like("swiglu_backward", "d_y", d_y, "gate", gate);
}

// As (rows, dim) with contiguous dims; halves of a wider tensor stay views.
inline at::Tensor as_rows(const at::Tensor& t) {
  const int64_t dim = t.size(-1);
  if (t.stride(-1) != 1 && dim > 1) return t.contiguous().view({-1, dim});
  for (int64_t d = 0; d + 2 < t.dim(); ++d) {
    if (t.size(d) != 1 && t.stride(d) != t.stride(d + 1) * t.size(d + 1)) return t.contiguous().view({-1, dim});
  }
  return t.dim() == 1 ? t.unsqueeze(0) : t.flatten(0, -2);
}

}  // namespace lazy::ops
