// lazy::attention in the program: shapes (Meta), autograd and the C++ entry. The Python package has its own in
// python/lazy_attention/_registration.py, over the same operators.
#include "ops/attention.h"
#include "ops/attention_arguments.h"
#include "ops/autograd.h"

namespace lazy::ops {

namespace {

AttentionOutputs attention_meta(LAZY_ATTENTION_PARAMETERS) {
  const AttentionArguments a LAZY_ATTENTION_PACK;
  check_attention(a);
  return empty_outputs(a, return_stats);
}

ForwardOutputs attention_forward_meta(LAZY_ATTENTION_PARAMETERS) {
  const AttentionArguments a LAZY_ATTENTION_PACK;
  check_attention(a);
  auto [out, lse, stats] = empty_outputs(a, return_stats);
  return {out, lse, stats, empty_alive_sum(a, out)};
}

BackwardOutputs attention_backward_meta(LAZY_ATTENTION_BACKWARD_PARAMETERS) {
  const AttentionArguments a LAZY_ATTENTION_PACK;
  check_attention(a);
  check_backward(a, d_out, out, lse, alive_sum);
  AttentionGradients g = empty_gradients(a, output_mask);
  return {g.q, g.k, g.v, g.distance_bias, g.tau, g.sink, g.alibi_slopes};
}

}  // namespace

TORCH_LIBRARY_IMPL(lazy, Meta, m) {
  m.impl("attention", attention_meta);
  m.impl("attention_forward", attention_forward_meta);
  m.impl("attention_backward", attention_backward_meta);
}

// Autograd. The backward is an operator of its own, so that torch.compile can trace it.

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const auto& attention_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lazy::attention", "")
                             .typed<AttentionOutputs(LAZY_ATTENTION_PARAMETERS)>();
  return op;
}

const auto& forward_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lazy::attention_forward", "")
                             .typed<ForwardOutputs(LAZY_ATTENTION_PARAMETERS)>();
  return op;
}

const auto& backward_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lazy::attention_backward", "")
                             .typed<BackwardOutputs(LAZY_ATTENTION_BACKWARD_PARAMETERS)>();
  return op;
}

OptionalTensor optional(const at::Tensor& t) { return t.defined() ? OptionalTensor(t) : OptionalTensor(); }
at::Tensor tensor(const OptionalTensor& t) { return t.value_or(at::Tensor()); }

// Inputs in the schema's order; their positions are those of the gradients that backward returns.
struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const OptionalTensor& distance_bias, const OptionalTensor& tau,
                               const OptionalTensor& sink, const OptionalTensor& alibi_slopes, std::string normalizer,
                               std::string offset, std::optional<double> sigmoid_bias, std::optional<double> scale,
                               bool causal, int64_t window, const OptionalTensor& cu_seqlens_q,
                               const OptionalTensor& cu_seqlens_k, int64_t return_stats, bool deterministic) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [out, lse, stats, alive_sum] =
        forward_op().call(q, k, v, distance_bias, tau, sink, alibi_slopes, normalizer, offset, sigmoid_bias, scale,
                          causal, window, cu_seqlens_q, cu_seqlens_k, return_stats, deterministic);
    context->save_for_backward({q, k, v, tensor(distance_bias), tensor(tau), tensor(sink), tensor(alibi_slopes),
                                tensor(cu_seqlens_q), tensor(cu_seqlens_k), out, lse, alive_sum});
    context->mark_non_differentiable({lse, stats});
    auto& data = context->saved_data;
    data["normalizer"] = normalizer;
    data["offset"] = offset;
    data["sigmoid_bias"] = sigmoid_bias;
    data["scale"] = scale;
    data["causal"] = causal;
    data["window"] = window;
    data["deterministic"] = deterministic;
    return {out, lse, stats};
  }

  static variable_list backward(AutogradContext* context, variable_list d) {
    const variable_list saved = context->get_saved_variables();
    auto& data = context->saved_data;
    std::array<bool, 7> mask;
    size_t edge = 0;  // only tensors that were given have one
    for (size_t n = 0; n < 7; ++n) mask[n] = saved[n].defined() && context->needs_input_grad(edge++);
    variable_list gradients(17);
    if (!d[0].defined()) return gradients;
    auto [d_q, d_k, d_v, d_bias, d_tau, d_sink, d_slopes] = backward_op().call(
        d[0], saved[9], saved[10], saved[0], saved[1], saved[2], optional(saved[3]), optional(saved[4]),
        optional(saved[5]), optional(saved[6]), data["normalizer"].toStringRef(), data["offset"].toStringRef(),
        data["sigmoid_bias"].toOptional<double>(), data["scale"].toOptional<double>(), data["causal"].toBool(),
        data["window"].toInt(), optional(saved[7]), optional(saved[8]), data["deterministic"].toBool(), mask,
        optional(saved[11]));
    const at::Tensor all[] = {d_q, d_k, d_v, d_bias, d_tau, d_sink, d_slopes};
    for (size_t n = 0; n < 7; ++n) {
      if (mask[n]) gradients[n] = all[n];
    }
    return gradients;
  }
};

AttentionOutputs attention_autograd(LAZY_ATTENTION_PARAMETERS) {
  if (!torch::autograd::compute_requires_grad(q, k, v, distance_bias, tau, sink, alibi_slopes)) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return attention_op().call(q, k, v, distance_bias, tau, sink, alibi_slopes, normalizer, offset, sigmoid_bias, scale,
                               causal, window, cu_seqlens_q, cu_seqlens_k, return_stats, deterministic);
  }
  const variable_list result = AttentionFunction::apply(
      q, k, v, distance_bias, tau, sink, alibi_slopes, std::string(normalizer), std::string(offset), sigmoid_bias,
      scale, causal, window, cu_seqlens_q, cu_seqlens_k, return_stats, deterministic);
  return {result[0], result[1], result[2]};
}

}  // namespace

TORCH_LIBRARY_IMPL(lazy, Autograd, m) {
  m.impl("attention", attention_autograd);
  // A second derivative is refused when it is computed, not when the first is taken with create_graph.
  m.impl("attention_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("attention_forward", torch::autograd::autogradNotImplementedFallback());
}

AttentionOutputs attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& distance_bias, const at::Tensor& tau, const AttentionOptions& options) {
  return attention_op().call(q, k, v, optional(distance_bias), optional(tau), optional(options.sink),
                             optional(options.alibi_slopes), options.normalizer, options.offset, options.sigmoid_bias,
                             options.scale, options.causal, options.window, optional(options.cu_seqlens_q),
                             optional(options.cu_seqlens_k), options.stats_level(), options.deterministic);
}

}  // namespace lazy::ops
