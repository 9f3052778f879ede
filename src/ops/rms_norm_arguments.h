// Checks of the RMSNorm operators' arguments, without looking at data, for every device.
#pragma once
#include "ops/fused.h"

namespace lazy::ops {

inline void check_rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  row_type("rms_norm", x);
  LAZY_CHECK("rms_norm", x.dim() >= 1 && weight.dim() == 1 && weight.sym_size(0) == x.sym_size(-1), "weight of shape (",
             x.dim() ? x.sym_size(-1) : c10::SymInt(0), "), received ", weight.sym_sizes());
  LAZY_CHECK("rms_norm", weight.scalar_type() == at::kFloat || weight.scalar_type() == x.scalar_type(),
             "weight of type float32 or x's, ", x.scalar_type(), ", received ", weight.scalar_type());
  check_device("rms_norm", "weight", weight, x);
}

inline void check_add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight) {
  check_rms_norm(x, weight);
  check_like("add_rms_norm", "residual", residual, "x", x);
}

inline void check_rms_norm_backward(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& d_sum) {
  check_rms_norm(x, weight);
  check_like("rms_norm_backward", "d_y", d_y, "x", x);
  if (d_sum && d_sum->defined()) check_like("rms_norm_backward", "d_sum", *d_sum, "x", x);
}

inline int64_t row_count(const at::Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

}  // namespace lazy::ops
