// lazy::rms_norm, add_rms_norm and rms_norm_backward on NVIDIA GPUs.
#include "ops/cuda/rows.h"
#include "ops/cuda_stream.h"
#include "ops/fused.h"
#include "ops/rms_norm.h"

namespace lazy::ops {

namespace {

using Pair = std::tuple<at::Tensor, at::Tensor>;

// Returns y and, if a residual is given, x + residual.
Pair normalize(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  const DeviceGuard guard(x);
  const at::Tensor in = x.contiguous(), w = weight.contiguous(),
                   other = residual.defined() ? residual.contiguous() : residual;
  at::Tensor y = at::empty_like(in), sum = other.defined() ? at::empty_like(in) : at::Tensor();
  cuda::RmsNorm a{.type = row_type("rms_norm", x), .weight_type = row_type("rms_norm", w)};
  a.x = in.const_data_ptr();
  if (other.defined()) {
    a.residual = other.const_data_ptr();
    a.sum = sum.mutable_data_ptr();
  }
  a.weight = w.const_data_ptr();
  a.y = y.mutable_data_ptr();
  a.eps = static_cast<float>(eps);
  a.rows = row_count(x);
  a.dim = x.size(-1);
  cuda::rms_norm(a, current_stream());
  return {y, sum};
}

at::Tensor rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_rms_norm(x, weight);
  return std::get<0>(normalize(x, {}, weight, eps));
}

Pair add_forward_cuda(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  check_add_rms_norm(x, residual, weight);
  return normalize(x, residual, weight, eps);
}

Pair rms_norm_backward_cuda(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight, double eps,
                            const OptionalTensor& d_sum) {
  check_rms_norm_backward(d_y, x, weight, d_sum);
  const DeviceGuard guard(x);
  const at::Tensor dy = d_y.contiguous(), in = x.contiguous(), w = weight.contiguous();
  const at::Tensor more = d_sum && d_sum->defined() ? d_sum->contiguous() : at::Tensor();
  const int64_t rows = row_count(x), dim = x.size(-1);
  at::Tensor d_x = at::empty_like(in), d_weight = at::empty_like(w);
  const at::Tensor parts = at::empty({cuda::rms_norm_parts(rows, dim), dim}, w.options().dtype(at::kFloat));
  cuda::RmsNormBackward a{.type = row_type("rms_norm", x), .weight_type = row_type("rms_norm", w)};
  a.d_y = dy.const_data_ptr();
  a.x = in.const_data_ptr();
  a.weight = w.const_data_ptr();
  a.d_sum = more.defined() ? more.const_data_ptr() : nullptr;
  a.d_x = d_x.mutable_data_ptr();
  a.d_weight = d_weight.mutable_data_ptr();
  a.parts = parts.mutable_data_ptr<float>();
  a.eps = static_cast<float>(eps);
  a.rows = rows;
  a.dim = dim;
  cuda::rms_norm_backward(a, current_stream());
  return {d_x, d_weight};
}

}  // namespace

LAZY_KERNELS(CUDA, m) {
  m.impl("rms_norm", LAZY_KERNEL(rms_norm_forward_cuda));
  m.impl("add_rms_norm", LAZY_KERNEL(add_forward_cuda));
  m.impl("rms_norm_backward", LAZY_KERNEL(rms_norm_backward_cuda));
}

}  // namespace lazy::ops
