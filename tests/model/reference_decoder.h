// Reference implementation of the decoder with plain ATen expressions and autograd, in any precision. It computes full
// n x n attention matrices. Tests compare the optimized implementation with it.
#pragma once
#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <string>

#include "model/config.h"
#include "model/forward_options.h"
#include "model/language_model.h"

namespace lazy::testing {

using Weights = std::map<std::string, at::Tensor>;

// Copies of the model's parameters in `dtype`, as leaf tensors that require a gradient.
inline Weights copy_weights(const LanguageModel& model, at::ScalarType dtype) {
  Weights out;
  for (const auto& [name, tensor] : model.parameters()) {
    out[name] = tensor.detach().to(dtype, false, /*copy=*/true).requires_grad_(true);
  }
  return out;
}

class ReferenceDecoder {
 public:
  // With `bf16`, weights and the results of all operations are rounded to bf16, while the operations are computed
  // exactly. This is the reference for bf16.
  ReferenceDecoder(const ModelConfig& config, Weights weights, bool bf16 = false)
      : c_(config), w_(std::move(weights)), bf16_(bf16) {}
  const Weights& weights() const { return w_; }

  // ids (batch, length) -> logits (batch, length, vocabulary)
  at::Tensor logits(const at::Tensor& ids) const {
    const bool llama = c_.is_plain_llama();
    at::Tensor x =
        weight(llama ? "model.embed_tokens.weight" : "model.embeddings.weight").index_select(0, ids.reshape({-1}));
    x = round(x.view({ids.size(0), ids.size(1), c_.hidden_size}) + positions(ids.size(1)));
    for (int64_t i = 0; i < c_.num_layers; ++i) {
      const std::string p = "model.layers." + std::to_string(i) + ".";
      const std::string first_norm = p + (llama ? "input_layernorm.weight" : "attn_norm.weight");
      const at::Tensor normed = norm(x, first_norm), remembered = norm(x.detach(), first_norm);
      x = round(x + attention(normed, remembered, p + (llama ? "self_attn." : "attn.")));
      const at::Tensor h = norm(x, p + (llama ? "post_attention_layernorm.weight" : "mlp_norm.weight"));
      const at::Tensor gate = project(h, p + "mlp.gate_proj.weight"), up = project(h, p + "mlp.up_proj.weight");
      x = round(x + project(round(gate * at::sigmoid(gate) * up), p + "mlp.down_proj.weight"));
    }
    x = norm(x, "model.norm.weight");
    if (!c_.tie_embeddings) return project(x, "lm_head.weight");
    return project(x, llama ? "model.embed_tokens.weight" : "model.embeddings.weight");
  }

  // (batch, length): log-probability of each label; 0 for negative labels.
  at::Tensor log_likelihood(const at::Tensor& ids, const at::Tensor& labels) const {
    const at::Tensor used = labels.ge(0);
    return at::log_softmax(logits(ids), 2).gather(2, labels.clamp_min(0).unsqueeze(2)).squeeze(2) * used;
  }

  // Mean negative log-likelihood over labels >= 0.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels) const {
    return -log_likelihood(ids, labels).sum() / labels.ge(0).sum();
  }

 private:
  at::Tensor round(const at::Tensor& x) const { return bf16_ ? x.to(at::kBFloat16).to(x.scalar_type()) : x; }
  at::Tensor weight(const std::string& name) const { return round(w_.at(name)); }
  at::Tensor project(const at::Tensor& x, const std::string& name) const {
    return round(at::matmul(x, weight(name).t()));
  }

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return round(x / at::sqrt((x * x).mean(-1, true) + c_.norm.eps) * w_.at(name));
  }

  at::Tensor heads(const at::Tensor& x, int64_t n) const {  // returns (batch, heads, length, head_dim)
    return x.view({x.size(0), x.size(1), n, c_.attention.head_dim}).transpose(1, 2);
  }

  // Applies RoPE to the first rotary_dim dimensions of every head, in pairs (n, n + half) or pairs of neighbors.
  at::Tensor rotate(const at::Tensor& x) const {
    if (!c_.rotates()) return x;
    const auto options = at::TensorOptions().dtype(at::kFloat);  // cos and sin are in fp32 by definition
    const int64_t turned = c_.rotary_dim(), half = turned / 2;
    const at::Tensor frequencies = at::reciprocal(
        at::pow(c_.positions.rope_base, at::arange(0, turned, 2, options) / static_cast<double>(turned)));
    const at::Tensor angles = at::arange(x.size(2), options).unsqueeze(1) * frequencies;
    const at::Tensor cos = angles.cos().to(x.scalar_type()), sin = angles.sin().to(x.scalar_type());
    const at::Tensor first = x.narrow(3, 0, turned), rest = x.narrow(3, turned, c_.attention.head_dim - turned);
    const auto part = [&](int64_t n) {
      return c_.positions.rope_interleaved ? first.unflatten(3, {half, 2}).select(4, n)
                                           : first.narrow(3, n * half, half);
    };
    const at::Tensor a = part(0) * cos - part(1) * sin, b = part(1) * cos + part(0) * sin;
    return round(
        at::cat({c_.positions.rope_interleaved ? at::stack({a, b}, 4).flatten(3) : at::cat({a, b}, 3), rest}, 3));
  }

  // The position embeddings that are added to the token embeddings of n tokens.
  at::Tensor positions(int64_t n) const {
    if (c_.positions.kind == PositionKind::learned) return w_.at("model.position_embeddings.weight").narrow(0, 0, n);
    at::Tensor out = at::zeros({n, c_.hidden_size}, at::kDouble);
    for (int64_t i = 0; i < n && c_.positions.kind == PositionKind::sinusoidal; ++i) {
      for (int64_t d = 0; d < c_.hidden_size; ++d) {
        const double angle = static_cast<double>(i) *
                             std::pow(10000.0, -static_cast<double>(d / 2 * 2) / static_cast<double>(c_.hidden_size));
        out[i][d] = d % 2 ? std::cos(angle) : std::sin(angle);
      }
    }
    return out.to(w_.begin()->second.scalar_type());
  }

  // Returns the attention weights for the scores s (..., keys). Keys that are not visible get a weight of zero.
  at::Tensor normalized(const at::Tensor& s, const at::Tensor& visible, const std::string& prefix) const {
    const at::Tensor hidden = visible.logical_not(), masked = s.masked_fill(hidden, -INFINITY);
    const at::Tensor count = visible.sum(1, true).to(s.scalar_type());
    if (c_.attention.normalizer == Normalizer::sigmoid) return at::sigmoid(s - count.log()) * visible;
    if (c_.attention.normalizer == Normalizer::softpick) {
      const at::Tensor largest = masked.amax(3, true).clamp_min(0).detach();
      const at::Tensor excess = (at::exp(s.masked_fill(hidden, 0) - largest) - at::exp(-largest)) * visible;
      return at::relu(excess) / (excess.abs().sum(3, true) + 1e-8);
    }
    if (c_.attention.normalizer == Normalizer::sparsemax || c_.attention.normalizer == Normalizer::entmax15) {
      const bool sparsemax = c_.attention.normalizer == Normalizer::sparsemax;
      // Masked keys get a finite score far below all others, because -infinity would give 0 * infinity.
      const at::Tensor x = s.masked_fill(hidden, -1e4) * (sparsemax ? 1.0 : 0.5);
      const at::Tensor sorted = std::get<0>(x.sort(-1, true));
      const at::Tensor k = at::arange(1, s.size(3) + 1, s.options());
      const at::Tensor mean = sorted.cumsum(-1) / k;
      const at::Tensor theta =
          sparsemax ? mean - 1 / k
                    : mean - ((1 - ((sorted * sorted).cumsum(-1) - k * mean * mean)) / k).clamp_min(0).sqrt();
      const at::Tensor support = (sparsemax ? sorted > theta : theta <= sorted).sum(-1, true);
      const at::Tensor p = at::relu(x - theta.gather(-1, support - 1));
      return (sparsemax ? p : p * p) * visible;
    }
    at::Tensor p = at::softmax(masked, 3);
    if (c_.has_sink()) {
      const at::Tensor sinks = c_.attention.sink_trainable
                                   ? w_.at(prefix + "sinks")
                                   : at::full({c_.attention.num_heads}, c_.attention.sink_init, s.options());
      const at::Tensor sink = sinks.view({1, -1, 1, 1}).expand({s.size(0), -1, s.size(2), 1});
      p = at::softmax(at::cat({masked, sink}, 3), 3).narrow(3, 0, s.size(3));
    }
    if (!c_.has_offset()) return p;
    const at::Tensor tau = c_.attention.offset_trainable
                               ? w_.at(prefix + "softmax_offset")
                               : at::full({c_.attention.num_heads}, c_.attention.offset_init, p.options());
    return at::relu(p + tau.view({1, -1, 1, 1}) /
                            (c_.attention.offset == OffsetKind::per_visible ? count : at::ones_like(count))) *
           visible;
  }

  // The position term of Transformer-XL's scores: (q + v) . W_r r for every pair of tokens, where v is the bias
  // r_r_bias and r is the encoding of their distance.
  at::Tensor position_scores(const at::Tensor& q, const at::Tensor& distance, const std::string& prefix) const {
    const int64_t n = distance.size(0);
    const auto wide = at::TensorOptions().dtype(at::kDouble);
    at::Tensor steps = at::arange(n, wide);
    if (c_.positions.clamp_length > 0) steps = steps.clamp_max(static_cast<double>(c_.positions.clamp_length));
    const at::Tensor angles = steps.unsqueeze(1) * at::pow(10000.0, at::arange(0, c_.hidden_size, 2, wide) /
                                                                        -static_cast<double>(c_.hidden_size));
    const at::Tensor encodings = at::cat({angles.sin(), angles.cos()}, 1).to(q.scalar_type());
    const at::Tensor r = heads(project(encodings, prefix + "r_proj.weight").unsqueeze(0),
                               c_.attention.num_heads);  // r has shape (1, heads, n, head_dim)
    const at::Tensor by_distance = at::matmul(q + w_.at(prefix + "r_r_bias").unsqueeze(1), r.transpose(2, 3));
    return by_distance.gather(3, distance.clamp_min(0).expand({q.size(0), c_.attention.num_heads, n, n}));
  }

  at::Tensor attention(const at::Tensor& x, const at::Tensor& remembered, const std::string& prefix) const {
    const int64_t n = x.size(1);
    const at::Tensor q = rotate(heads(project(x, prefix + "q_proj.weight"), c_.attention.num_heads));
    const int64_t group = c_.attention.num_heads / c_.attention.num_kv_heads;
    const auto keys = [&](const at::Tensor& of) {
      return rotate(heads(project(of, prefix + "k_proj.weight"), c_.attention.num_kv_heads))
          .repeat_interleave(group, 1);
    };
    const auto values = [&](const at::Tensor& of) {
      return heads(project(of, prefix + "v_proj.weight"), c_.attention.num_kv_heads).repeat_interleave(group, 1);
    };
    const at::Tensor index = at::arange(n, at::kLong);
    const at::Tensor distance = index.unsqueeze(1) - index.unsqueeze(0);  // element (i, j) is i - j
    at::Tensor visible = distance.ge(0), own = at::ones_like(visible);
    if (c_.positions.segment_length > 0) {
      const at::Tensor segment = index.div(c_.positions.segment_length, "floor");
      own = segment.unsqueeze(1).eq(segment.unsqueeze(0));
      visible =
          visible &
          (segment * c_.positions.segment_length - c_.positions.memory_length).unsqueeze(1).le(index.unsqueeze(0));
    }
    const bool relative = c_.positions.kind == PositionKind::transformer_xl;
    const at::Tensor asks = relative ? q + w_.at(prefix + "r_w_bias").unsqueeze(1) : q;
    at::Tensor s =
        at::where(own, at::matmul(asks, keys(x).transpose(2, 3)), at::matmul(asks, keys(remembered).transpose(2, 3)));
    if (relative) s = s + position_scores(q, distance, prefix);
    s = s / std::sqrt(static_cast<double>(c_.attention.head_dim));
    if (c_.attention.window > 0) visible = visible & distance.lt(c_.attention.window);
    if (c_.attention.distance_bias_window > 0) {
      const at::Tensor within = distance.ge(0) & distance.lt(c_.attention.distance_bias_window);
      const at::Tensor bias =
          w_.at(prefix + "learnable_bias_diagonals")
              .index_select(1, distance.clamp(0, c_.attention.distance_bias_window - 1).reshape({-1}));
      s = s + bias.view({1, c_.attention.num_heads, n, n}) * within;
    }
    if (c_.positions.kind == PositionKind::alibi) {
      s = s - w_.at(prefix + "alibi_slopes").view({1, -1, 1, 1}) * distance.to(s.scalar_type());
    }
    const at::Tensor p = normalized(s, visible, prefix);
    const at::Tensor mixed = at::matmul(p * own, values(x)) + at::matmul(p * own.logical_not(), values(remembered));
    at::Tensor out = round(mixed).transpose(1, 2);
    if (c_.attention.gate != GateKind::none) {
      const at::Tensor gate = round(at::sigmoid(project(x, prefix + "gate_proj.weight")));
      out = round(out * gate.view({x.size(0), n, c_.attention.num_heads, -1}));
    }
    return project(out.reshape({x.size(0), n, -1}), prefix + "o_proj.weight");
  }

  ModelConfig c_;
  Weights w_;
  bool bf16_;
};

}  // namespace lazy::testing
