#include "model/mixers/titans/prefix_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "ops/attention_kernels.h"
#include "ops/fused.h"

namespace lazy {
namespace {

using ops::OptionalTensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const auto& backward_op() {
  static const auto op =
      ops::operator_handle<ops::BackwardOutputs(LAZY_ATTENTION_BACKWARD_PARAMETERS)>("lazy::attention_backward");
  return op;
}

OptionalTensor optional(const at::Tensor& t) { return t.defined() ? OptionalTensor(t) : OptionalTensor(); }
at::Tensor tensor(const OptionalTensor& t) { return t.value_or(at::Tensor()); }

// The operator's softmax and its log-sum-exp, both differentiable. With p the weights, d lse_i / d q_i = scale sum_j
// p_ij k_j is attention whose values are the keys, and d lse_i / d k_j = scale p_ij q_i is summed over i as a value's
// gradient is.
struct AttentionAndLse : torch::autograd::Function<AttentionAndLse> {
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const OptionalTensor& cu_q, const OptionalTensor& cu_k, int64_t window,
                               bool deterministic) {
    const auto [out, lse, stats] = ops::attention(q, k, v, {}, {}, options(tensor(cu_q), tensor(cu_k), window));
    context->save_for_backward({q, k, v, tensor(cu_q), tensor(cu_k), out, lse});
    context->saved_data["window"] = window;
    context->saved_data["deterministic"] = deterministic;
    return {out, lse};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[5], &lse = saved[6];
    const int64_t window = context->saved_data["window"].toInt();
    const auto back = [&](const at::Tensor& d_out, const at::Tensor& values, const at::Tensor& result,
                          bool values_alone) {
      return backward_op().call(d_out.contiguous(), result, lse, q, k, values, {}, {}, {}, {}, "softmax", "per_visible",
                                {}, {}, true, window, optional(saved[3]), optional(saved[4]),
                                context->saved_data["deterministic"].toBool(),
                                {!values_alone, !values_alone, true, false, false, false, false});
    };
    auto [d_q, d_k, d_v, none_1, none_2, none_3, none_4] = back(gradients[0], v, out, false);
    // (..., tokens, heads, 1)
    const at::Tensor d_lse =
        (gradients[1] / std::sqrt(static_cast<double>(q.size(-1)))).transpose(-1, -2).unsqueeze(-1);
    const at::Tensor mean_key = std::get<0>(ops::attention(q, k, k, {}, {}, options(saved[3], saved[4], window)));
    d_q = d_q + (d_lse * mean_key).to(q.scalar_type());
    d_k = d_k + std::get<2>(back((d_lse * q).to(q.scalar_type()), k, mean_key, true));
    return {d_q, d_k, d_v, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }

  static ops::AttentionOptions options(const at::Tensor& cu_q, const at::Tensor& cu_k, int64_t window) {
    ops::AttentionOptions out{.normalizer = "softmax", .window = window};
    out.cu_seqlens_q = cu_q, out.cu_seqlens_k = cu_k;
    return out;
  }
};

}  // namespace

at::Tensor prefix_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& prefix_q,
                            const at::Tensor& prefix_k, const at::Tensor& prefix_v, const ops::AttentionOptions& o) {
  if (prefix_k.size(0) == 0) return std::get<0>(ops::attention(q, k, v, {}, {}, o));
  const variable_list own =
      AttentionAndLse::apply(q, k, v, optional(o.cu_seqlens_q), optional(o.cu_seqlens_k), o.window, o.deterministic);
  const at::ScalarType type = own[1].scalar_type();
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  // (..., heads, tokens, prefix)
  const at::Tensor scores =
      at::matmul(prefix_q.transpose(-3, -2).to(type), prefix_k.to(type).permute({1, 2, 0})) * scale;
  const at::Tensor lse = at::logaddexp(own[1], scores.logsumexp(-1));
  const at::Tensor share = (own[1] - lse).exp().transpose(-1, -2).unsqueeze(-1);
  const at::Tensor of_prefix =
      at::matmul((scores - lse.unsqueeze(-1)).exp(), prefix_v.to(type).transpose(0, 1)).transpose(-3, -2);
  return (own[0].to(type) * share + of_prefix).to(q.scalar_type());
}

}  // namespace lazy
