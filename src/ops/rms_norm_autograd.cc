// lazy::rms_norm for the C++ program: the Meta kernels, which compute only shapes, the autograd kernels and the entry
// points. The Python package uses python/lazy_attention/_registration.py instead.
#include "ops/autograd.h"
#include "ops/rms_norm.h"

namespace lazy::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Pair = std::tuple<at::Tensor, at::Tensor>;

at::Tensor rms_norm_forward_meta(const at::Tensor& x, const at::Tensor& weight, double) {
  check_rms_norm(x, weight);
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}
Pair add_forward_meta(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double) {
  check_add_rms_norm(x, residual, weight);
  return {at::empty_like(x, at::MemoryFormat::Contiguous), at::empty_like(x, at::MemoryFormat::Contiguous)};
}
Pair rms_norm_backward_meta(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight, double,
                            const OptionalTensor& d_sum) {
  check_rms_norm_backward(d_y, x, weight, d_sum);
  return {at::empty_like(x, at::MemoryFormat::Contiguous), at::empty_like(weight)};
}

Pair backward(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight, double eps,
              const OptionalTensor& d_sum) {
  static const auto op = operator_handle<decltype(rms_norm_backward_meta)>("lazy::rms_norm_backward");
  return op.call(d_y, x, weight, eps, d_sum);
}

struct Norm : torch::autograd::Function<Norm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, weight});
    context->saved_data["eps"] = eps;
    return rms_norm(x, weight, eps);
  }
  static variable_list backward(AutogradContext* context, variable_list d) {
    const variable_list saved = context->get_saved_variables();
    auto [d_x, d_weight] = ops::backward(d[0], saved[0], saved[1], context->saved_data["eps"].toDouble(), {});
    return {d_x, d_weight, {}};
  }
};

struct AddNorm : torch::autograd::Function<AddNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& residual,
                               const at::Tensor& weight, double eps) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [y, sum] = add_rms_norm(x, residual, weight, eps);
    context->save_for_backward({sum, weight});
    context->saved_data["eps"] = eps;
    return {y, sum};
  }
  static variable_list backward(AutogradContext* context, variable_list d) {
    const variable_list saved = context->get_saved_variables();
    if (!d[0].defined()) return {d[1], d[1], {}, {}};
    auto [d_x, d_weight] = ops::backward(d[0], saved[0], saved[1], context->saved_data["eps"].toDouble(),
                                         d[1].defined() ? OptionalTensor(d[1]) : OptionalTensor());
    return {d_x, d_x, d_weight, {}};
  }
};

at::Tensor rms_norm_forward_autograd(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return Norm::apply(x, weight, eps);
}
Pair add_forward_autograd(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  const variable_list result = AddNorm::apply(x, residual, weight, eps);
  return {result[0], result[1]};
}

}  // namespace

TORCH_LIBRARY_IMPL(lazy, Meta, m) {
  m.impl("rms_norm", rms_norm_forward_meta);
  m.impl("add_rms_norm", add_forward_meta);
  m.impl("rms_norm_backward", rms_norm_backward_meta);
}
TORCH_LIBRARY_IMPL(lazy, Autograd, m) {
  implement_reverse_mode(m, "rms_norm", rms_norm_forward_autograd);
  implement_reverse_mode(m, "add_rms_norm", add_forward_autograd);
  m.impl("rms_norm_backward", torch::autograd::autogradNotImplementedFallback());  // no second derivatives
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  static const auto op = operator_handle<decltype(rms_norm_forward_meta)>("lazy::rms_norm");
  return op.call(x, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps) {
  static const auto op = operator_handle<decltype(add_forward_meta)>("lazy::add_rms_norm");
  return op.call(x, residual, weight, eps);
}

}  // namespace lazy::ops
