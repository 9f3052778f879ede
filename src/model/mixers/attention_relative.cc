// Attention with Transformer-XL's positions, and its memory: in training of the segments before within a sequence, in
// generation of what was read before.
#include <ATen/ATen.h>

#include "core/error.h"
#include "model/language_model.h"
#include "model/mixers/attention.h"
#include "model/mixers/layer_state.h"
#include "model/positions/relative_matrices.h"
#include "model/positions/transformer_xl.h"
#include "model/probes.h"
#include "ops/rms_norm.h"

namespace lazy {
namespace {

// The layer's input for segments to come: Dai et al. let no gradient through the hidden states that are remembered.
at::Tensor remembered(const NormOutput& x) {
  if (!x.from.defined()) return x.value.detach();
  const at::Tensor from = x.from.detach();
  if (!x.bias.defined()) return ops::rms_norm(from, x.weight, x.eps);
  return at::layer_norm(from.to(at::kFloat), x.weight.sizes(), x.weight, x.bias, x.eps).to(from.scalar_type());
}

// Every document on its own.
std::pair<at::Tensor, at::Tensor> relative_packed(const RelativeInputs& all, const PackedSequences& packed) {
  const auto on_host = [](const at::Tensor& t) { return t.to(at::kCPU, at::kInt).contiguous(); };
  const at::Tensor begin_q = on_host(packed.cu_seqlens_q), begin_k = on_host(packed.cu_seqlens_k);
  const int32_t *q = begin_q.const_data_ptr<int32_t>(), *k = begin_k.const_data_ptr<int32_t>();
  std::vector<at::Tensor> outs, stats;
  for (int64_t n = 0; n + 1 < begin_q.numel(); ++n) {
    if (q[n] == q[n + 1]) continue;
    RelativeInputs one = all;
    one.q = all.q.narrow(1, q[n], q[n + 1] - q[n]);
    for (at::Tensor* keys : {&one.k, &one.v, &one.past_k, &one.past_v}) {
      if (keys->defined()) *keys = keys->narrow(1, k[n], k[n + 1] - k[n]);
    }
    const auto [out, statistics] = relative_attention(one);
    outs.push_back(out);
    stats.push_back(statistics);
  }
  return {at::cat(outs, 1), all.attention.return_stats ? at::cat(stats, 3) : at::Tensor()};
}

}  // namespace

at::Tensor AttentionMixer::attend_relative(const NormOutput& x, const std::vector<at::Tensor>& parts, int64_t layer,
                                           const ForwardOptions& options, at::Tensor* stats) const {
  if (options.on_attention_input) {
    fail("model",
         "maps of attention: expected other positions, transformer_xl's scores do not follow from q and k alone");
  }
  const LayerProbes probe(options.probes, layer);
  const auto keys = [&](const std::vector<at::Tensor>& of) { return by_head(of[1], k_bias, kv_heads_); };
  const auto values = [&](const std::vector<at::Tensor>& of) { return by_head(of[2], v_bias, kv_heads_); };
  const at::Tensor own_k = keys(parts), own_v = values(parts);
  at::Tensor q = probe("attention.q.projected", by_head(parts[0], q_bias, heads_)),
             k = probe("attention.k.projected", own_k);
  const at::Tensor v = probe("attention.v", own_v);
  bool replaced = !k.is_same(own_k) || !v.is_same(own_v);
  if (q_norm.defined()) q = probe("attention.q.normed", normed(q, q_norm));
  const auto seen = [&](const char* place, const at::Tensor& own) {
    const at::Tensor other = probe(place, own);
    replaced |= !other.is_same(own);
    return other;
  };
  if (k_norm.defined()) k = seen("attention.k.normed", normed(k, k_norm));
  q = probe("attention.q", q);
  k = seen("attention.k", k);
  RelativeInputs in{.q = q,
                    .k = k,
                    .v = v,
                    .content_bias = content_bias,
                    .position_bias = position_bias,
                    .distance_bias = distance_bias,
                    .tau = tau,
                    .attention = attention_options(),
                    .segments = {config_.segment_length, config_.memory_length}};
  in.attention.return_stats = stats != nullptr;
  if (in.segments.memory > 0 && at::GradMode::is_enabled()) {
    // What takes their place is remembered too.
    const auto past = replaced ? std::vector<at::Tensor>() : qkv.forward(remembered(x));
    in.past_k = replaced ? k.detach() : normed(keys(past), k_norm);
    in.past_v = replaced ? v.detach() : values(past);
  }
  if (options.packed && options.packed->keys.defined()) {
    for (at::Tensor* tokens : {&in.k, &in.v, &in.past_k, &in.past_v}) {
      if (tokens->defined()) *tokens = tokens->index_select(1, options.packed->keys);
    }
  }
  if (options.cache) {
    std::vector<at::Tensor>& before = layer_state(*options.cache, layer);
    if (!before.empty()) in.k = at::cat({before[0], in.k}, 1), in.v = at::cat({before[1], in.v}, 1);
    const int64_t end = options.cache->length + x.value.size(1);
    in.first = end - in.k.size(1);
    const int64_t seen = std::max(in.segments.first_seen(end), window_ > 0 ? end - window_ + 1 : 0),
                  gone = std::max<int64_t>(0, seen - in.first);
    before = {in.k.narrow(1, gone, in.k.size(1) - gone).contiguous(),
              in.v.narrow(1, gone, in.v.size(1) - gone).contiguous()};
  }
  const int64_t longest = options.packed ? options.packed->longest : in.first + in.k.size(1);
  const at::Tensor encodings = relative_encodings(relative_reach(longest, in.segments, window_), config_.hidden_size,
                                                  config_.clamp_length, x.value.options().requires_grad(false));
  in.r = at::linear(encodings, r_proj).unflatten(1, {heads_, head_dim_});
  if (probe.wants("attention.scores") || probe.wants("attention.weights")) {
    if (options.packed) fail("model", "packed sequences: expected no probe of scores or weights, found one");
    const at::Tensor scores = probe("attention.scores", relative_scores(in));
    const at::Tensor weights = probe("attention.weights", normalized_weights(scores, terms()));
    if (stats) *stats = weight_statistics(weights);
    if (stats && in.first > 0) stats->select(0, 0).zero_();  // the text's first key is out of sight
    return probe("attention.heads", relative_values(weights, in));
  }
  const auto [out, statistics] = options.packed ? relative_packed(in, *options.packed) : relative_attention(in);
  if (stats) *stats = statistics.defined() && options.packed ? statistics.squeeze(1) : statistics;
  return probe("attention.heads", out);
}

}  // namespace lazy
