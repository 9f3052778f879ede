#include "model/mixers/titans/sliding_attention.h"

#include <ATen/ATen.h>

#include "model/mixers/titans/prefix_attention.h"
#include "ops/rope.h"

namespace lazy {

SlidingAttention::SlidingAttention(const ModelConfig& c, int64_t layer, at::Device device)
    : qkv(c.hidden_size, {c.hidden_size, c.hidden_size, c.hidden_size}, device),
      config_(c),
      window_(c.window_of(layer)) {}

at::Tensor SlidingAttention::forward(const NormOutput& x, const Tokens& tokens, const at::Tensor& prefix,
                                     std::vector<at::Tensor>* past, bool deterministic) const {
  const auto by_head = [&](const at::Tensor& part) {
    return part.view({part.size(0), part.size(1), config_.num_heads, config_.head_dim});
  };
  const Rope rope = rope_at(config_, config_.max_length);
  const auto turned = [&](const at::Tensor& heads) {
    return rope.base > 0 ? ops::rope(heads, rope.base, 0, {.scaling = rope.scaling, .positions = tokens.positions})
                         : heads;
  };
  const auto parts = qkv.forward(x);
  const at::Tensor plain_q = by_head(parts[0]);
  at::Tensor q = turned(plain_q), prefix_q = plain_q, k = turned(by_head(parts[1])), v = by_head(parts[2]);
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
