#include "ops/rms_norm.h"

#include "ops/fused.h"
#include "ops/rows.h"

namespace lazy::ops {

void check_rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  row_type("rms_norm", x);
  LAZY_CHECK("rms_norm", x.dim() >= 1 && weight.dim() == 1 && weight.sym_size(0) == x.sym_size(-1), "weight of shape (",
             x.dim() ? x.sym_size(-1) : c10::SymInt(0), "), received ", weight.sym_sizes());
  LAZY_CHECK("rms_norm", weight.scalar_type() == at::kFloat || weight.scalar_type() == x.scalar_type(),
             "weight of float32 or of the type of x, ", x.scalar_type(), ", received ", weight.scalar_type());
  check_device("rms_norm", "weight", weight, x);
}

void check_add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight) {
  check_rms_norm(x, weight);
  check_like("add_rms_norm", "residual", residual, "x", x);
}

void check_rms_norm_backward(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& d_sum) {
  check_rms_norm(x, weight);
  check_like("rms_norm_backward", "d_y", d_y, "x", x);
  if (d_sum && d_sum->defined()) check_like("rms_norm_backward", "d_sum", *d_sum, "x", x);
}

int64_t row_count(const at::Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

namespace {

using Pair = std::tuple<at::Tensor, at::Tensor>;

at::Tensor rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_rms_norm(x, weight);
  const at::Tensor in = x.contiguous(), w = weight.to(at::kFloat).contiguous();
  at::Tensor y = at::empty_like(in);
  parallel_rows(row_count(x), x.size(-1), [&](int64_t begin, int64_t end) {
    rows::rms_norm(row_type("rms_norm", x), in.const_data_ptr(), nullptr, nullptr, w.const_data_ptr<float>(),
                   static_cast<float>(eps), y.mutable_data_ptr(), begin, end, x.size(-1));
  });
  return y;
}

Pair add_forward_cpu(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  check_add_rms_norm(x, residual, weight);
  const at::Tensor in = x.contiguous(), other = residual.contiguous(), w = weight.to(at::kFloat).contiguous();
  at::Tensor y = at::empty_like(in), sum = at::empty_like(in);
  parallel_rows(row_count(x), x.size(-1), [&](int64_t begin, int64_t end) {
    rows::rms_norm(row_type("rms_norm", x), in.const_data_ptr(), other.const_data_ptr(), sum.mutable_data_ptr(),
                   w.const_data_ptr<float>(), static_cast<float>(eps), y.mutable_data_ptr(), begin, end, x.size(-1));
  });
  return {y, sum};
}

// Computes the gradient of the weight as partial sums over ranges of rows, which are then added in a fixed order. The
// ranges depend only on the shape of x, so the result does not depend on the number of threads.
Pair rms_norm_backward_cpu(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight, double eps,
                           const OptionalTensor& d_sum) {
  check_rms_norm_backward(d_y, x, weight, d_sum);
  const at::Tensor dy = d_y.contiguous(), in = x.contiguous(), w = weight.to(at::kFloat).contiguous();
  const at::Tensor more = d_sum && d_sum->defined() ? d_sum->contiguous() : at::Tensor();
  const int64_t rows = row_count(x), dim = x.size(-1);
  const int64_t parts = std::clamp<int64_t>(rows * dim / 32768, 1, 64), part = (rows + parts - 1) / parts;
  at::Tensor d_x = at::empty_like(in), d_weight = at::zeros({parts, dim}, w.options());
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) {
      rows::rms_norm_backward(
          row_type("rms_norm", x), dy.const_data_ptr(), in.const_data_ptr(), w.const_data_ptr<float>(),
          static_cast<float>(eps), more.defined() ? more.const_data_ptr() : nullptr, d_x.mutable_data_ptr(),
          d_weight.mutable_data_ptr<float>() + n * dim, std::min(n * part, rows), std::min((n + 1) * part, rows), dim);
    }
  });
  return {d_x, d_weight.sum(0).to(weight.scalar_type())};
}

}  // namespace

LAZY_SCHEMAS(m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor y, Tensor sum)");
  m.def(
      "rms_norm_backward(Tensor d_y, Tensor x, Tensor weight, float eps, Tensor? d_sum) -> (Tensor d_x, Tensor "
      "d_weight)");
}

LAZY_KERNELS(CPU, m) {
  m.impl("rms_norm", LAZY_KERNEL(rms_norm_forward_cpu));
  m.impl("add_rms_norm", LAZY_KERNEL(add_forward_cpu));
  m.impl("rms_norm_backward", LAZY_KERNEL(rms_norm_backward_cpu));
}
}  // namespace lazy::ops
