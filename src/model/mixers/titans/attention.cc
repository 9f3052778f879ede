#include "model/mixers/titans/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/mixers/mixer.h"
#include "model/mixers/packed_layouts.h"
#include "ops/attention_arguments.h"
#include "ops/autograd.h"
#include "ops/rope.h"

namespace lazy {

at::Tensor persistent_tokens(const ParameterTable& table, const ModelConfig& config) {
  const at::Tensor listed = table["persistent"];
  if (listed.defined()) return listed;
  return at::empty({0, config.hidden_size}, table.all().front().second.options().requires_grad(false));
}

at::Tensor WithPersistent::text(const at::Tensor& y) const {
  if (rows.defined()) return y.index_select(1, rows);
  return added > 0 ? y.narrow(1, added, y.size(1) - added) : y;
}

WithPersistent with_persistent(const at::Tensor& x, const at::Tensor& persistent, const ForwardOptions& options) {
  const int64_t count = persistent.size(0), length = x.size(1);
  const at::Tensor before = persistent.to(x.scalar_type()).unsqueeze(0).expand({x.size(0), -1, -1});
  const auto whole = x.options().dtype(at::kLong).requires_grad(false);
  if (!options.packed) {
    const int64_t earlier = options.cache ? options.cache->length : 0;
    if (earlier > 0) return {.x = x, .positions = at::arange(count + earlier, count + earlier + length, whole)};
    return {.x = at::cat({before, x}, 1), .positions = at::arange(count + length, whole), .added = count};
  }
  const PrefixedDocuments& all = with_prefix(*options.packed, count, x.device());
  return {.x = at::cat({before, x}, 1).index_select(1, all.from),
          .positions = all.sequences.positions,
          .packed = &all.sequences,
          .rows = all.rows};
}

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

// The softmax attention operator and its log-sum-exp, both differentiable. With weights p, d lse_i / d q_i = scale
// sum_j p_ij k_j is attention with the keys as values. d lse_i / d k_j = scale p_ij q_i is summed over i like the
// gradient of a value.
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
                                {!values_alone, !values_alone, true, false, false, false, false}, {});
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
  const int64_t H = q.size(-2), D = q.size(-1), P = prefix_k.size(0);
  // The prefix of each head as a block of one matrix: its products read and write tokens as they lie.
  const at::Tensor own_block = at::eye(H, own[1].options().requires_grad(false)).view({H, 1, H, 1});
  const auto blocks = [&](const at::Tensor& of_heads) {  // (H, rows, columns)
    return (of_heads.to(type).unsqueeze(2) * own_block).flatten(2, 3).flatten(0, 1);
  };
  const at::Tensor keys = blocks(prefix_k.permute({1, 2, 0})), values = blocks(prefix_v.transpose(0, 1));
  // (..., tokens, heads, prefix)
  const at::Tensor scores = at::matmul(prefix_q.to(type).flatten(-2), keys).unflatten(-1, {H, P}) * scale;
  const at::Tensor own_lse = own[1].transpose(-1, -2), lse = at::logaddexp(own_lse, scores.logsumexp(-1));
  const at::Tensor of_prefix = at::matmul((scores - lse.unsqueeze(-1)).exp().flatten(-2), values).unflatten(-1, {H, D});
  return (own[0] * (own_lse - lse).exp().unsqueeze(-1) + of_prefix).to(q.scalar_type());
}

SlidingAttention::SlidingAttention(const ModelConfig& c, int64_t layer, at::Device device)
    : qkv(c.hidden_size, {c.hidden_size, c.hidden_size, c.hidden_size}, device),
      config_(c),
      window_(c.window_of(layer)) {}

at::Tensor SlidingAttention::forward(const NormOutput& x, const Tokens& tokens, const at::Tensor& prefix,
                                     std::vector<at::Tensor>* past, bool deterministic) const {
  const auto by_head = [&](const at::Tensor& part) {
    return part.view({part.size(0), part.size(1), config_.attention.num_heads, config_.attention.head_dim});
  };
  const Rope rope = rope_at(config_, config_.max_length);
  const auto rotate = [&](const at::Tensor& heads) {
    return rope.base > 0 ? ops::rope(heads, rope.base, 0, {.scaling = rope.scaling, .positions = tokens.positions})
                         : heads;
  };
  const auto parts = qkv.forward(x);
  const at::Tensor plain_q = by_head(parts[0]);
  at::Tensor q = rotate(plain_q), prefix_q = plain_q, k = rotate(by_head(parts[1])), v = by_head(parts[2]);
  if (past) {
    if (!past->empty()) k = at::cat({(*past)[0], k}, 1), v = at::cat({(*past)[1], v}, 1);
    const int64_t kept = window_ > 0 ? std::min(window_ - 1, k.size(1)) : k.size(1);
    *past = {k.narrow(1, k.size(1) - kept, kept).clone(), v.narrow(1, v.size(1) - kept, kept).clone()};
  }
  ops::AttentionOptions options{.normalizer = "softmax", .window = window_, .deterministic = deterministic};
  if (tokens.cu_seqlens.defined()) {
    options.cu_seqlens_q = options.cu_seqlens_k = tokens.cu_seqlens.to(at::kInt);
    for (at::Tensor* t : {&q, &k, &v, &prefix_q}) *t = t->squeeze(0);
  }
  at::Tensor out;
  if (prefix.defined() && prefix.size(0) > 0) {
    const auto of_prefix = qkv.forward(prefix.to(x.value.scalar_type()).unsqueeze(0));
    out = prefix_attention(q, k, v, prefix_q, by_head(of_prefix[1]).squeeze(0), by_head(of_prefix[2]).squeeze(0),
                           options);
  } else {
    out = std::get<0>(ops::attention(q, k, v, {}, {}, options));
  }
  return out.reshape(x.value.sizes());
}

}  // namespace lazy
