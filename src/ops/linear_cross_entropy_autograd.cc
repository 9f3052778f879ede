// lazy::linear_cross_entropy for the C++ program: the Meta kernels, which compute only shapes, the autograd kernels and
// the entry points. The Python package uses python/lazy_attention/_registration.py instead.
#include "ops/autograd.h"
#include "ops/linear_cross_entropy.h"

namespace lazy::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

CrossEntropyGradients compute_meta(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                   int64_t, bool want_hidden, bool want_weight) {
  check_linear_cross_entropy(hidden, weight, labels);
  const auto f32 = hidden.options().dtype(at::kFloat);
  return {at::empty({}, f32), at::empty_symint({hidden.sym_size(0)}, f32),
          at::empty_symint({hidden.sym_size(0)}, hidden.options().dtype(at::kBool)),
          want_hidden ? at::empty_symint(hidden.sym_sizes(), hidden.options().dtype(kept_gradient_type(hidden)))
                      : at::empty({0}, hidden.options()),
          want_weight ? at::empty_symint(weight.sym_sizes(), weight.options().dtype(kept_gradient_type(weight)))
                      : at::empty({0}, f32)};
}

CrossEntropyOutputs alone_meta(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                               int64_t ignore_index) {
  return without_gradients(compute_meta(hidden, weight, labels, ignore_index, false, false));
}

at::Tensor scaled(const at::Tensor& d_loss, const at::Tensor& gradient, const at::Tensor& input) {
  static const auto op = operator_handle<decltype(scaled)>("lazy::linear_cross_entropy_backward");
  return op.call(d_loss, gradient, input);
}

struct Loss : torch::autograd::Function<Loss> {
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& labels, int64_t ignore_index, bool want_hidden, bool want_weight) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = operator_handle<decltype(compute_meta)>("lazy::linear_cross_entropy_and_gradients");
    auto [loss, log_prob, correct, d_hidden, d_weight] =
        op.call(hidden, weight, labels, ignore_index, want_hidden, want_weight);
    context->save_for_backward({d_hidden, d_weight, hidden, weight});
    context->mark_non_differentiable({log_prob, correct});
    context->saved_data["want_hidden"] = want_hidden;
    context->saved_data["want_weight"] = want_weight;
    return {loss, log_prob, correct};
  }
  static variable_list backward(AutogradContext* context, variable_list d) {
    const variable_list saved = context->get_saved_variables();
    variable_list gradients(6);
    if (!d[0].defined()) return gradients;
    if (context->saved_data["want_hidden"].toBool()) gradients[0] = scaled(d[0], saved[0], saved[2]);
    if (context->saved_data["want_weight"].toBool()) gradients[1] = scaled(d[0], saved[1], saved[3]);
    return gradients;
  }
};

CrossEntropyOutputs cross_entropy_forward_autograd(const at::Tensor& hidden, const at::Tensor& weight,
                                                   const at::Tensor& labels, int64_t ignore_index) {
  const bool enabled = at::GradMode::is_enabled();
  const variable_list result = Loss::apply(hidden, weight, labels, ignore_index, enabled && hidden.requires_grad(),
                                           enabled && weight.requires_grad());
  return {result[0], result[1], result[2]};
}

}  // namespace

TORCH_LIBRARY_IMPL(lazy, Meta, m) {
  m.impl("linear_cross_entropy", alone_meta);
  m.impl("linear_cross_entropy_and_gradients", compute_meta);
}
TORCH_LIBRARY_IMPL(lazy, Autograd, m) {
  implement_reverse_mode(m, "linear_cross_entropy", cross_entropy_forward_autograd);
  for (const char* name : {"linear_cross_entropy_and_gradients", "linear_cross_entropy_backward"})
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                                                    const at::Tensor& labels, int64_t ignore_index) {
  static const auto op = operator_handle<decltype(alone_meta)>("lazy::linear_cross_entropy");
  return op.call(hidden, weight, labels, ignore_index);
}

}  // namespace lazy::ops
