// lazy::attention: operator schema, allocation of the outputs and gradients, and checks of the backward inputs.
#include "ops/attention.h"

#include <algorithm>

#include "lazy/kernel_table.h"
#include "ops/attention_arguments.h"
#include "ops/cuda_library.h"
#include "ops/forced_kernel.h"
#include "ops/library.h"

namespace lazy::ops {

// Whether the normalizer has a log-sum-exp. Requires check_attention.
static bool has_lse(const AttentionArguments& a) {
  return kernels::traits(kernels::normalizer_from_name(a.normalizer).value()).has_lse;
}

AttentionOutputs empty_outputs(const AttentionArguments& a, int64_t return_stats) {
  TORCH_CHECK(return_stats >= 0 && return_stats <= 2, "lazy::", a.operation,
              ": expected return_stats 0 (none), 1 (weights) or 2 (weights and scores), received ", return_stats);
  const auto type = accumulate_type(a.q.scalar_type());
  c10::SymDimVector out_size(a.q.sym_sizes().begin(), a.q.sym_sizes().end());
  out_size.back() = a.v.sym_size(-1);
  c10::SymDimVector rows;  // shape of the row statistics: (batch, heads, length), packed (heads, tokens)
  if (a.q.dim() == 4) rows.push_back(a.q.sym_size(0));
  rows.push_back(a.q.sym_size(-2));
  rows.push_back(a.q.sym_size(-3));
  c10::SymDimVector stats_size{c10::SymInt(kStatsParts[return_stats])};
  if (return_stats) stats_size.insert(stats_size.end(), rows.begin(), rows.end());
  const c10::SymDimVector none{c10::SymInt(0)};
  return {at::empty_symint(out_size, a.q.options()),
          at::empty_symint(has_lse(a) ? rows : none, a.q.options().dtype(type)),
          at::empty_symint(stats_size, a.q.options().dtype(type))};
}

static_assert(kMaxAliveSumHead == kernels::kMaxAliveSumHead);

bool keeps_alive_sum(const kernels::Problem& problem, bool deterministic) {
  if (!kernels::traits(problem.normalizer).takes_tau || deterministic || problem.softcap > 0 ||
      (problem.dtype != kernels::DType::f16 && problem.dtype != kernels::DType::bf16) ||
      !cuda_library().attention_kernel)
    return false;
  kernels::Problem p = problem;
  p.q_length = p.k_length = 4096;  // long enough for the tensor-core kernels; the plain kernel computes short problems
  const std::string kernel = forced_kernel() == "automatic" ? cuda_library().attention_kernel(p) : forced_kernel();
  return std::max(p.head_dim, p.value_dim) <= kMaxAliveSumHead &&
         (kernel == name(kernels::CudaKernel::hopper) || kernel == name(kernels::CudaKernel::portable));
}

at::Tensor empty_alive_sum(const AttentionArguments& a, const at::Tensor& out) {
  const bool kept = cuda_library().attention_kernel &&
                    keeps_alive_sum(problem_of_any_length(a), deterministic_wanted(a.deterministic));
  return kept ? at::empty_like(out) : at::empty({0}, out.options());
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
                "lazy::attention_backward: expected output_mask to request gradients only of tensors that are given");
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

LAZY_SCHEMAS(m) {
  m.def(
      "attention(Tensor q, Tensor k, Tensor v, Tensor? distance_bias=None, Tensor? tau=None, Tensor? sink=None, *, "
      "Tensor? alibi_slopes=None, str normalizer=\"elastic\", str offset=\"per_visible\", float? sigmoid_bias=None, "
      "float? scale=None, float? softcap=None, bool causal=True, int window=-1, Tensor? cu_seqlens_q=None, Tensor? "
      "cu_seqlens_k=None, "
      "int return_stats=0, bool deterministic=False) -> (Tensor out, Tensor lse, Tensor stats)");
  // The autograd kernel calls this operator and passes alive_sum to attention_backward. alive_sum has no elements if it
  // is not saved.
  m.def(
      "attention_forward(Tensor q, Tensor k, Tensor v, Tensor? distance_bias, Tensor? tau, Tensor? sink, "
      "Tensor? alibi_slopes, str normalizer, str offset, float? sigmoid_bias, float? scale, float? softcap, bool "
      "causal, int window, "
      "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, int return_stats, bool deterministic) "
      "-> (Tensor out, Tensor lse, Tensor stats, Tensor alive_sum)");
  m.def(
      "attention_backward(Tensor d_out, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor? distance_bias, "
      "Tensor? tau, Tensor? sink, Tensor? alibi_slopes, str normalizer, str offset, float? sigmoid_bias, float? scale, "
      "float? softcap, "
      "bool causal, int window, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, bool deterministic, bool[7] output_mask, "
      "Tensor? alive_sum=None) "
      "-> (Tensor d_q, Tensor d_k, Tensor d_v, Tensor d_distance_bias, Tensor d_tau, Tensor d_sink, "
      "Tensor d_alibi_slopes)");
}

}  // namespace lazy::ops
