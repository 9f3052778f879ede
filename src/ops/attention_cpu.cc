// lazy::attention on the CPU: allocates outputs and runs the kernels. float64 uses the reference implementation.
#include "ops/attention_arguments.h"
#include "ops/attention_pointers.h"
#include "ops/forced_kernel.h"
#include "ops/library.h"

namespace lazy::ops {

namespace {

void run(const kernels::Problem& p, const kernels::Forward<float>& f) { kernels::forward(p, f); }
void run(const kernels::Problem& p, const kernels::Forward<double>& f) { kernels::reference::forward(p, f); }
void run(const kernels::Problem& p, const kernels::Backward<float>& b) { kernels::backward(p, b); }
void run(const kernels::Problem& p, const kernels::Backward<double>& b) { kernels::reference::backward(p, b); }

void require_served(const kernels::Problem& p) {
  if (p.dtype == kernels::DType::f64) return;  // float64 uses the reference implementation
  const std::string& forced = forced_kernel();
  TORCH_CHECK(forced == "automatic" || forced == "reference", "lazy::attention: LAZY_KERNEL=", forced,
              " requires CUDA tensors, received tensors on the CPU");
  const std::string unmet = kernels::unmet_condition(p);
  TORCH_CHECK(unmet.empty(), "lazy::attention: ", unmet);
}

template <typename Real>
void forward(const kernels::Problem& p, const AttentionArguments& a, at::Tensor& out, at::Tensor& lse,
             at::Tensor& stats) {
  InputPointers<Real, kernels::Forward<Real>> filled(a);
  set_outputs<Real>(filled.arguments, out, lse, stats);
  run(p, filled.arguments);
}

template <typename Real>
void backward(const kernels::Problem& p, const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out,
              const at::Tensor& lse, AttentionGradients& g) {
  InputPointers<Real, kernels::Backward<Real>> filled(a);
  const at::Tensor lse_contiguous = lse.contiguous();
  set_backward(filled.arguments, d_out, out, lse_contiguous, g);
  run(p, filled.arguments);
}

}  // namespace

AttentionOutputs attention_cpu(LAZY_ATTENTION_PARAMETERS) {
  const AttentionArguments a LAZY_ATTENTION_PACK;
  check_attention(a);
  if (reference_is_forced(a)) {
    return attention_by_reference(q, k, v, distance_bias, tau, sink, alibi_slopes, normalizer, offset, sigmoid_bias,
                                  scale, softcap, causal, window, cu_seqlens_q, cu_seqlens_k, return_stats,
                                  deterministic);
  }
  at::Tensor cu_q, cu_k;
  kernels::Problem p = attention_problem(a, cu_q, cu_k);
  require_served(p);
  p.threads = at::get_num_threads();
  auto [out, lse, stats] = empty_outputs(a, return_stats);
  if (p.dtype == kernels::DType::f64) {
    forward<double>(p, a, out, lse, stats);
  } else {
    forward<float>(p, a, out, lse, stats);
  }
  return {out, lse, stats};
}

static ForwardOutputs attention_forward_cpu(LAZY_ATTENTION_PARAMETERS) {
  auto [out, lse, stats] =
      attention_cpu(q, k, v, distance_bias, tau, sink, alibi_slopes, normalizer, offset, sigmoid_bias, scale, softcap,
                    causal, window, cu_seqlens_q, cu_seqlens_k, return_stats, deterministic);
  const AttentionArguments a LAZY_ATTENTION_PACK;
  return {out, lse, stats, empty_alive_sum(a, out)};
}

BackwardOutputs attention_backward_cpu(LAZY_ATTENTION_BACKWARD_PARAMETERS) {
  const AttentionArguments a LAZY_ATTENTION_PACK;
  check_attention(a);
  check_backward(a, d_out, out, lse, alive_sum);
  if (reference_is_forced(a)) {
    return attention_backward_by_reference(d_out, out, lse, q, k, v, distance_bias, tau, sink, alibi_slopes, normalizer,
                                           offset, sigmoid_bias, scale, softcap, causal, window, cu_seqlens_q,
                                           cu_seqlens_k, deterministic, output_mask, alive_sum);
  }
  at::Tensor cu_q, cu_k;
  kernels::Problem p = attention_problem(a, cu_q, cu_k);
  require_served(p);
  p.threads = at::get_num_threads();
  AttentionGradients g = empty_gradients(a, output_mask);
  if (p.dtype == kernels::DType::f64) {
    backward<double>(p, a, d_out, out, lse, g);
  } else {
    backward<float>(p, a, d_out, out, lse, g);
  }
  return {g.q, g.k, g.v, g.distance_bias, g.tau, g.sink, g.alibi_slopes};
}

LAZY_KERNELS(CPU, m) {
  m.impl("attention", LAZY_KERNEL(attention_cpu));
  m.impl("attention_forward", LAZY_KERNEL(attention_forward_cpu));
  m.impl("attention_backward", LAZY_KERNEL(attention_backward_cpu));
}

}  // namespace lazy::ops
