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
#include "ops/cuda_library.h"
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

// Matrix products of token rows with block-diagonal matrices, which have one block per head. The products accumulate in
// the dtype `sums`. On a GPU, the operands have 16 bits if q has 16 bits, as in the attention kernels.
struct HeadProducts {
  at::ScalarType factors, sums;

  HeadProducts(const at::Tensor& q, const at::Tensor& lse)
      : factors(q.is_cuda() && q.element_size() == 2 ? q.scalar_type() : lse.scalar_type()), sums(lse.scalar_type()) {}
  at::Tensor operator()(const at::Tensor& a, const at::Tensor& b) const {
    const at::Tensor left = a.to(factors), right = b.to(factors);
    return factors == sums ? at::mm(left, right) : at::mm(left, right, sums);
  }
  // Converts (heads, rows, columns) to one block-diagonal matrix, so that a product reads and writes tokens in their
  // memory layout. blocks() extracts the blocks.
  at::Tensor joined(const at::Tensor& of_heads) const {
    const int64_t H = of_heads.size(0);
    const at::Tensor own = at::eye(H, of_heads.options().dtype(factors)).view({H, 1, H, 1});
    return (of_heads.to(factors).unsqueeze(2) * own).flatten(2, 3).flatten(0, 1);
  }
  static at::Tensor blocks(const at::Tensor& joined, int64_t heads) {  // returns (rows, columns, heads)
    return joined.view({heads, joined.size(0) / heads, heads, joined.size(1) / heads}).diagonal(0, 0, 2);
  }
};

// Attention with one softmax over the keys of a prefix and of a window. The two parts are computed separately; each
// output is multiplied by the part's share of the softmax, and the products are added. The gradient of a score is
// weight (d_out . (value - out)), where `out` is the combined output. Given the combined `out` and log-sum-exp, an
// attention kernel computes this gradient for the keys of the window.
struct PrefixAttention : torch::autograd::Function<PrefixAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& prefix_q, const at::Tensor& prefix_k, const at::Tensor& prefix_v,
                            const OptionalTensor& cu_q, const OptionalTensor& cu_k, int64_t window,
                            bool deterministic) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [own, own_lse, stats] = ops::attention(q, k, v, {}, {}, options(tensor(cu_q), tensor(cu_k), window));
    const HeadProducts product(q, own_lse);
    const at::Tensor scores =
        by_head(product(flat(prefix_q), product.joined(prefix_k.permute({1, 2, 0}))), q) * scale(q);
    const at::Tensor window_lse = by_token(own_lse),
                     lse = at::logaddexp(window_lse, scores.logsumexp(-1, /*keepdim=*/true)),
                     weights = (scores - lse).exp(),
                     of_prefix = at::mm(flat(weights).to(product.factors), product.joined(prefix_v.transpose(0, 1)));
    at::Tensor out = at::empty(q.sizes(), q.options());
    at::addcmul_out(out, of_prefix.view(q.sizes()), own, (window_lse - lse).exp());
    context->save_for_backward({q, k, v, prefix_q, prefix_k, prefix_v, tensor(cu_q), tensor(cu_k), out,
                                lse.squeeze(-1).transpose(-1, -2).contiguous(), weights});
    context->saved_data["window"] = window;
    context->saved_data["deterministic"] = deterministic;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &prefix_q = saved[3], &prefix_k = saved[4], &prefix_v = saved[5], &out = saved[8],
                     &lse = saved[9], &weights = saved[10], d_out = gradients[0].contiguous(), d = flat(d_out);
    const int64_t H = q.size(-2);
    const HeadProducts product(q, lse);
    const at::Tensor keys = product.joined(prefix_k.permute({1, 2, 0})),
                     values = product.joined(prefix_v.transpose(0, 1)),
                     at_out = (d_out * out).sum(-1, /*keepdim=*/true, product.sums),
                     d_scores = weights * (by_head(product(d, values.t()), q) - at_out) * scale(q),
                     rows = flat(d_scores);
    const at::Tensor d_prefix_q = at::mm(rows.to(product.factors), keys.t()).to(q.scalar_type()).view(q.sizes()),
                     d_keys = HeadProducts::blocks(product(flat(prefix_q).t(), rows), H).permute({1, 2, 0}),
                     d_values = HeadProducts::blocks(product(flat(weights).t(), d), H).permute({0, 2, 1});
    const int64_t window = context->saved_data["window"].toInt();
    const bool deterministic = context->saved_data["deterministic"].toBool();
    variable_list result = of_window(saved, d_out, window, deterministic);
    if (result.empty()) result = of_window_alone(saved, d_out, d_scores, window, deterministic);
    for (const at::Tensor& t : {d_prefix_q, d_keys.to(prefix_k.scalar_type()), d_values.to(prefix_v.scalar_type())})
      result.push_back(t);
    result.resize(10);  // undefined gradients for the arguments after prefix_v
    return result;
  }

 private:
  // Returns the gradients of q, k and v that come from the keys of the window, or an empty list if no kernel supports
  // the inputs.
  static variable_list of_window(const variable_list& saved, const at::Tensor& d_out, int64_t window,
                                 bool deterministic) {
    const auto kernel = d_out.is_cuda() ? ops::cuda_library().softmax_part_backward : nullptr;
    if (!kernel) return {};
    const OptionalTensor none, cu_q = optional(saved[6]), cu_k = optional(saved[7]),
                               sink = at::zeros({saved[0].size(-2)}, saved[9].options());
    const ops::AttentionArguments arguments{saved[0], saved[1],       saved[2],      none, none,         sink,
                                            none,     "softmax_sink", "per_visible", {},   {},           {},
                                            true,     window,         cu_q,          cu_k, deterministic};
    ops::AttentionGradients g = ops::empty_gradients(arguments, {true, true, true, false, false, false, false});
    return kernel(arguments, d_out, saved[8], saved[9], g) ? variable_list{g.q, g.k, g.v} : variable_list{};
  }

  // Returns the gradients of q, k and v that come from the keys of the window, computed with the backward pass of
  // ordinary attention. That pass differentiates a softmax over the window only, so the contribution of d_lse, the
  // gradient of the window's log-sum-exp, is added. With the softmax weights p of the window, d lse_i / d q_i = scale
  // sum_j p_ij k_j; this is attention with the keys as values. Also, d lse_i / d k_j = scale p_ij q_i, which is summed
  // over i like the gradient of a value.
  static variable_list of_window_alone(const variable_list& saved, const at::Tensor& d_out, const at::Tensor& d_scores,
                                       int64_t window, bool deterministic) {
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const ops::AttentionOptions how = options(saved[6], saved[7], window);
    const auto [own, own_lse, stats] = ops::attention(q, k, v, {}, {}, how);
    const auto back = [&, &lse = own_lse](const at::Tensor& d, const at::Tensor& values, const at::Tensor& result,
                                          bool values_alone) {
      return backward_op().call(d, result, lse, q, k, values, {}, {}, {}, {}, "softmax", "per_visible", {}, {}, {},
                                true, window, optional(saved[6]), optional(saved[7]), deterministic,
                                {!values_alone, !values_alone, true, false, false, false, false}, {});
    };
    const auto product_like_q = [&](const at::Tensor& a, const at::Tensor& b) {
      at::Tensor out = at::empty(q.sizes(), q.options());
      return at::mul_out(out, a, b);
    };
    auto [d_q, d_k, d_v, none_1, none_2, none_3, none_4] =
        back(product_like_q(d_out, (by_token(own_lse) - by_token(saved[9])).exp()), v, own, false);
    // The gradients of a query's scores over all keys add up to zero. The sum over the window's keys is therefore minus
    // the sum over the prefix's keys, whose gradients are in d_scores.
    const at::Tensor d_lse = -d_scores.sum(-1, /*keepdim=*/true);
    const at::Tensor mean_key = std::get<0>(ops::attention(q, k, k, {}, {}, how));
    at::addcmul_out(d_q, d_q, mean_key, d_lse);
    d_k.add_(std::get<2>(back(product_like_q(q, d_lse), k, mean_key, true)));
    return {d_q, d_k, d_v};
  }

  static at::Tensor by_token(const at::Tensor& lse) {  // converts lse to the shape (..., tokens, heads, 1)
    return lse.transpose(-1, -2).unsqueeze(-1);
  }
  static ops::AttentionOptions options(const at::Tensor& cu_q, const at::Tensor& cu_k, int64_t window) {
    ops::AttentionOptions out{.normalizer = "softmax", .window = window};
    out.cu_seqlens_q = cu_q, out.cu_seqlens_k = cu_k;
    return out;
  }
  // flat() reshapes (..., tokens, heads, n) to rows, and by_head() is the inverse.
  static at::Tensor flat(const at::Tensor& x) { return x.reshape({-1, x.size(-2) * x.size(-1)}); }
  static at::Tensor by_head(const at::Tensor& rows, const at::Tensor& q) {
    auto sizes = q.sizes().vec();
    sizes.back() = rows.size(-1) / q.size(-2);
    return rows.view(sizes);
  }
  static double scale(const at::Tensor& q) { return 1 / std::sqrt(static_cast<double>(q.size(-1))); }
};

}  // namespace

at::Tensor prefix_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& prefix_q,
                            const at::Tensor& prefix_k, const at::Tensor& prefix_v, const ops::AttentionOptions& o) {
  if (prefix_k.size(0) == 0) return std::get<0>(ops::attention(q, k, v, {}, {}, o));
  return PrefixAttention::apply(q, k, v, prefix_q, prefix_k, prefix_v, optional(o.cu_seqlens_q),
                                optional(o.cu_seqlens_k), o.window, o.deterministic);
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
