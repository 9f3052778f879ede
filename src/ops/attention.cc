// lazy::attention: schema, shapes (Meta), autograd and the C++ entry.
#include "ops/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <algorithm>

#include "lazy/kernel_table.h"
#include "ops/attention_arguments.h"
#include "ops/forced_kernel.h"
#include "ops/load_cuda.h"

namespace lazy::ops {

// After check_attention.
static bool has_lse(const AttentionArguments& a) {
  return kernels::traits(kernels::normalizer_from_name(a.normalizer).value()).has_lse;
}

AttentionOutputs empty_outputs(const AttentionArguments& a, int64_t return_stats) {
  TORCH_CHECK(return_stats >= 0 && return_stats <= 2, "lazy::", a.operation,
              ": expected return_stats 0 (none), 1 (of weights) or 2 (of weights and scores), received ", return_stats);
  const auto type = accumulate_type(a.q.scalar_type());
  c10::SymDimVector out_size(a.q.sym_sizes().begin(), a.q.sym_sizes().end());
  out_size.back() = a.v.sym_size(-1);
  c10::SymDimVector rows;  // (batch, heads, length), packed (heads, tokens)
  if (a.q.dim() == 4) rows.push_back(a.q.sym_size(0));
  rows.push_back(a.q.sym_size(-2));
  rows.push_back(a.q.sym_size(-3));
  c10::SymDimVector stats_size{c10::SymInt(kStatsParts[return_stats])};
  if (return_stats) stats_size.append(rows.begin(), rows.end());
  const c10::SymDimVector none{c10::SymInt(0)};
  return {at::empty_symint(out_size, a.q.options()),
          at::empty_symint(has_lse(a) ? rows : none, a.q.options().dtype(type)),
          at::empty_symint(stats_size, a.q.options().dtype(type))};
}

namespace {

static_assert(kMaxAliveSumHead == kernels::kMaxAliveSumHead);

bool keeps_alive_sum(const AttentionArguments& a) {
  const at::ScalarType type = a.q.scalar_type();
  if (a.normalizer != name(kernels::Normalizer::elastic) || deterministic_wanted(a.deterministic) ||
      (type != at::kHalf && type != at::kBFloat16) || !cuda_choice())
    return false;
  kernels::Problem p = problem_of_any_length(a);
  p.q_length = p.k_length = 4096;  // the plain kernel serves the shortest
  const std::string kernel = forced_kernel() == "automatic" ? cuda_choice()(p) : forced_kernel();
  return std::max(p.head_dim, p.value_dim) <= kMaxAliveSumHead &&
         (kernel == name(kernels::CudaKernel::hopper) || kernel == name(kernels::CudaKernel::portable));
}

}  // namespace

at::Tensor empty_alive_sum(const AttentionArguments& a, const at::Tensor& out) {
  return keeps_alive_sum(a) ? at::empty_like(out) : at::empty({0}, out.options());
}

void check_backward(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out, const at::Tensor& lse,
                    const OptionalTensor& alive_sum) {
  c10::SymDimVector like_out(a.q.sym_sizes().begin(), a.q.sym_sizes().end());
  like_out.back() = a.v.sym_size(-1);
  c10::SymDimVector rows;
  if (a.q.dim() == 4) rows.push_back(a.q.sym_size(0));
  rows.push_back(a.q.sym_size(-2));
  rows.push_back(a.q.sym_size(-3));
  if (!has_lse(a)) rows.assign(1, c10::SymInt(0));
  auto check = [&](const at::Tensor& t, const char* name, c10::SymIntArrayRef sizes, at::ScalarType type) {
    TORCH_CHECK(t.sym_sizes() == sizes && t.scalar_type() == type && t.device() == a.q.device(),
                "lazy::attention_backward: expected ", name, " of shape ", sizes, " and type ", type, " on ",
                a.q.device(), ", received ", t.sym_sizes(), " of ", t.scalar_type(), " on ", t.device());
  };
  check(d_out, "d_out", like_out, a.q.scalar_type());
  check(out, "out", like_out, a.q.scalar_type());
  check(lse, "lse", rows, accumulate_type(a.q.scalar_type()));
  if (given(alive_sum) && alive_sum->sym_numel() != 0) check(*alive_sum, "alive_sum", like_out, a.q.scalar_type());
}

AttentionGradients empty_gradients(const AttentionArguments& a, const std::array<bool, 7>& mask) {
  const at::Tensor none;
  auto like = [&](bool wanted, const at::Tensor& t) {
    if (!wanted) return at::empty({0}, a.q.options());
    TORCH_CHECK(t.defined(),
                "lazy::attention_backward: expected a gradient to be asked only of tensors that are given");
    return at::empty_symint(t.sym_sizes(), t.options());
  };
  auto optional = [&](const OptionalTensor& t) -> const at::Tensor& { return given(t) ? *t : none; };
  return {like(mask[0], a.q),
          like(mask[1], a.k),
          like(mask[2], a.v),
          like(mask[3], optional(a.distance_bias)),
          like(mask[4], optional(a.tau)),
          like(mask[5], optional(a.sink)),
          like(mask[6], optional(a.alibi_slopes))};
}

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

TORCH_LIBRARY(lazy, m) {
  m.def(
      "attention(Tensor q, Tensor k, Tensor v, Tensor? distance_bias=None, Tensor? tau=None, Tensor? sink=None, *, "
      "Tensor? alibi_slopes=None, str normalizer=\"elastic\", str offset=\"per_visible\", float? sigmoid_bias=None, "
      "float? scale=None, bool causal=True, int window=-1, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
      "int return_stats=0, bool deterministic=False) -> (Tensor out, Tensor lse, Tensor stats)");
  // What autograd calls: alive_sum is for attention_backward, without elements where it is not kept.
  m.def(
      "attention_forward(Tensor q, Tensor k, Tensor v, Tensor? distance_bias, Tensor? tau, Tensor? sink, "
      "Tensor? alibi_slopes, str normalizer, str offset, float? sigmoid_bias, float? scale, bool causal, int window, "
      "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, int return_stats, bool deterministic) "
      "-> (Tensor out, Tensor lse, Tensor stats, Tensor alive_sum)");
  m.def(
      "attention_backward(Tensor d_out, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor? distance_bias, "
      "Tensor? tau, Tensor? sink, Tensor? alibi_slopes, str normalizer, str offset, float? sigmoid_bias, float? scale, "
      "bool causal, int window, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, bool deterministic, bool[7] output_mask, "
      "Tensor? alive_sum=None) "
      "-> (Tensor d_q, Tensor d_k, Tensor d_v, Tensor d_distance_bias, Tensor d_tau, Tensor d_sink, "
      "Tensor d_alibi_slopes)");
}

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
