// The Meta kernels of lazy::attention, which compute only shapes, and, for the C++ program, the autograd kernels and
// the C++ entry points. The Python package implements autograd for the same operators in
// python/lazy_attention/_registration.py.
#include "ops/attention.h"
#include "ops/attention_arguments.h"
#include "ops/cuda_library.h"
#include "ops/forced_kernel.h"
#include "ops/rope_autograd.h"
#include "ops/try_concat_view.h"

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

// Autograd kernels. They call the backward pass as a separate operator, so that torch.compile can trace it.

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

// Applies RoPE to q and k. If both are slices of one tensor, one kernel rotates both.
std::pair<at::Tensor, at::Tensor> rotated(const at::Tensor& q, const at::Tensor& k, const RopeArguments& rotation) {
  const at::Tensor both = try_concat_view({q, k}, 2);
  if (!both.defined()) return {rope(q, rotation, false), rope(k, rotation, false)};
  const auto turned = rope(both, rotation, false).split_with_sizes({q.size(2), k.size(2)}, 2);
  return {turned[0], turned[1]};
}

// The autograd node of lazy::attention. Its inputs are in the order of the operator schema, and backward() returns the
// gradients in the same order. If `rotation` is given, RoPE is applied to q and k first.
struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const OptionalTensor& distance_bias, const OptionalTensor& tau,
                               const OptionalTensor& sink, const OptionalTensor& alibi_slopes, std::string normalizer,
                               std::string offset, std::optional<double> sigmoid_bias, std::optional<double> scale,
                               std::optional<double> softcap, bool causal, int64_t window,
                               const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k,
                               int64_t return_stats, bool deterministic, const std::optional<RopeArguments>& rotation) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [turned_q, turned_k] = rotation ? rotated(q, k, *rotation) : std::pair(q, k);
    auto [out, lse, stats, alive_sum] = forward_op().call(
        turned_q, turned_k, v, distance_bias, tau, sink, alibi_slopes, normalizer, offset, sigmoid_bias, scale, softcap,
        causal, window, cu_seqlens_q, cu_seqlens_k, return_stats, deterministic);
    context->save_for_backward({turned_q, turned_k, v, tensor(distance_bias), tensor(tau), tensor(sink),
                                tensor(alibi_slopes), tensor(cu_seqlens_q), tensor(cu_seqlens_k), out, lse, alive_sum});
    if (rotation) save_rope(*context, *rotation);
    context->saved_data["rotated"] = rotation.has_value();
    context->mark_non_differentiable({lse, stats});
    auto& data = context->saved_data;
    data["normalizer"] = normalizer;
    data["offset"] = offset;
    data["sigmoid_bias"] = sigmoid_bias;
    data["scale"] = scale;
    data["softcap"] = softcap;
    data["causal"] = causal;
    data["window"] = window;
    data["deterministic"] = deterministic;
    return {out, lse, stats};
  }

  static variable_list backward(AutogradContext* context, variable_list d) {
    const variable_list saved = context->get_saved_variables();
    auto& data = context->saved_data;
    std::array<bool, 7> mask;
    size_t edge = 0;  // index of the autograd edge; tensors that were not given have no edge
    for (size_t n = 0; n < 7; ++n) mask[n] = saved[n].defined() && context->needs_input_grad(edge++);
    variable_list gradients(19);
    if (!d[0].defined()) return gradients;
    OptionalTensor given[12];
    for (size_t n = 3; n < 12; ++n) given[n] = optional(saved[n]);
    const AttentionArguments a{saved[0],
                               saved[1],
                               saved[2],
                               given[3],
                               given[4],
                               given[5],
                               given[6],
                               data["normalizer"].toStringRef(),
                               data["offset"].toStringRef(),
                               data["sigmoid_bias"].toOptional<double>(),
                               data["scale"].toOptional<double>(),
                               data["softcap"].toOptional<double>(),
                               data["causal"].toBool(),
                               data["window"].toInt(),
                               given[7],
                               given[8],
                               data["deterministic"].toBool()};
    const Results results{d[0], saved[9], saved[10], given[11]};
    const AttentionGradients g = data["rotated"].toBool() ? rotated_back(a, results, mask, saved_rope(*context))
                                                          : gradients_of(a, results, mask);
    const at::Tensor all[] = {g.q, g.k, g.v, g.distance_bias, g.tau, g.sink, g.alibi_slopes};
    for (size_t n = 0; n < 7; ++n) {
      if (mask[n]) gradients[n] = all[n];
    }
    return gradients;
  }

 private:
  struct Results {
    const at::Tensor &d_out, &out, &lse;
    const OptionalTensor& alive_sum;
  };

  static AttentionGradients gradients_of(const AttentionArguments& a, const Results& r,
                                         const std::array<bool, 7>& mask) {
    auto [d_q, d_k, d_v, d_bias, d_tau, d_sink, d_slopes] =
        backward_op().call(r.d_out, r.out, r.lse, a.q, a.k, a.v, a.distance_bias, a.tau, a.sink, a.alibi_slopes,
                           a.normalizer, a.offset, a.sigmoid_bias, a.scale, a.softcap, a.causal, a.window,
                           a.cu_seqlens_q, a.cu_seqlens_k, a.deterministic, mask, r.alive_sum);
    return {d_q, d_k, d_v, d_bias, d_tau, d_sink, d_slopes};
  }

  // Returns the gradients of q, k and v as slices of one tensor, so that the backward pass of a combined QKV projection
  // needs no copy.
  static AttentionGradients rotated_back(const AttentionArguments& a, const Results& r, std::array<bool, 7> mask,
                                         const RopeArguments& rotation) {
    const int64_t heads = a.q.size(2), kv_heads = a.k.size(2);
    const auto parts = at::empty({a.q.size(0), a.q.size(1), heads + 2 * kv_heads, a.q.size(3)}, a.q.options())
                           .split_with_sizes({heads, kv_heads, kv_heads}, 2);
    AttentionGradients g;
    if (a.q.is_cuda() && !reference_is_forced(a)) {
      TORCH_CHECK(cuda_library().rotated_backward, "lazy::attention_backward: the CUDA operators are not loaded");
      check_backward(a, r.d_out, r.out, r.lse, r.alive_sum);
      mask[0] = mask[1] = mask[2] = false;
      g = empty_gradients(a, mask);
      g.q = parts[0], g.k = parts[1], g.v = parts[2];
      cuda_library().rotated_backward(a, r.d_out, r.out, r.lse, r.alive_sum, rotation, g);
    } else {
      mask[0] = mask[1] = mask[2] = true;
      g = gradients_of(a, r, mask);
      g.q = parts[0].copy_(rope(g.q, rotation, true));
      g.k = parts[1].copy_(rope(g.k, rotation, true));
      g.v = parts[2].copy_(g.v);
    }
    return g;
  }
};

AttentionOutputs attention_autograd(LAZY_ATTENTION_PARAMETERS) {
  if (!torch::autograd::compute_requires_grad(q, k, v, distance_bias, tau, sink, alibi_slopes)) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return attention_op().call(q, k, v, distance_bias, tau, sink, alibi_slopes, normalizer, offset, sigmoid_bias, scale,
                               softcap, causal, window, cu_seqlens_q, cu_seqlens_k, return_stats, deterministic);
  }
  const variable_list result =
      AttentionFunction::apply(q, k, v, distance_bias, tau, sink, alibi_slopes, std::string(normalizer),
                               std::string(offset), sigmoid_bias, scale, softcap, causal, window, cu_seqlens_q,
                               cu_seqlens_k, return_stats, deterministic, std::optional<RopeArguments>());
  return {result[0], result[1], result[2]};
}

}  // namespace

TORCH_LIBRARY_IMPL(lazy, Autograd, m) {
  implement_reverse_mode(m, "attention", attention_autograd);
  // autogradNotImplementedFallback raises an error when a second derivative is computed, but not when the first
  // derivative is computed with create_graph=True.
  m.impl("attention_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("attention_forward", torch::autograd::autogradNotImplementedFallback());
}

AttentionOutputs attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& distance_bias, const at::Tensor& tau, const AttentionOptions& options) {
  return attention_op().call(q, k, v, optional(distance_bias), optional(tau), optional(options.sink),
                             optional(options.alibi_slopes), options.normalizer, options.offset, options.sigmoid_bias,
                             options.scale, options.softcap, options.causal, options.window,
                             optional(options.cu_seqlens_q), optional(options.cu_seqlens_k), options.stats_level(),
                             options.deterministic);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> rotated_attention(const at::Tensor& q, const at::Tensor& k,
                                                                 const at::Tensor& v, const at::Tensor& distance_bias,
                                                                 const at::Tensor& tau, double base,
                                                                 const RopeOptions& turned, const AttentionOptions& o) {
  const bool one_size = q.dim() == 4 && k.dim() == 4 && v.sizes() == k.sizes() && q.size(1) == k.size(1);
  if (!one_size || turned.positions.defined() || o.cu_seqlens_q.defined() ||
      !torch::autograd::compute_requires_grad(q, k, v)) {
    return attention(rope(q, base, 0, turned), rope(k, base, 0, turned), v, distance_bias, tau, o);
  }
  const RopeArguments rotation{base, 0, turned.rotary_dim < 0 ? q.size(3) : turned.rotary_dim, turned.interleaved,
                               turned.scaling};
  const variable_list result = AttentionFunction::apply(
      q, k, v, optional(distance_bias), optional(tau), optional(o.sink), optional(o.alibi_slopes), o.normalizer,
      o.offset, o.sigmoid_bias, o.scale, o.softcap, o.causal, o.window, optional(o.cu_seqlens_q),
      optional(o.cu_seqlens_k), o.stats_level(), o.deterministic, std::optional(rotation));
  return {result[0], result[1], result[2]};
}

}  // namespace lazy::ops
