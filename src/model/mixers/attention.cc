#include "model/mixers/attention.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/checkpoint_names.h"
#include "model/language_model.h"
#include "model/mixers/streaming.h"
#include "model/positions/alibi.h"
#include "model/probes.h"
#include "ops/attention.h"
#include "ops/decode.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace lazy {
namespace {

// The layer's place in the cache.
size_t place_in(KVCache& cache, int64_t layer) {
  const auto index = static_cast<size_t>(layer);
  if (cache.keys.size() <= index) {
    cache.keys.resize(index + 1);
    cache.values.resize(index + 1);
  }
  return index;
}

// Appends k and v (batch, length, kv_heads, head_dim) to the layer's cache.
void extend_cache(KVCache& cache, int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const int64_t end = cache.length + k.size(1);
  const size_t index = place_in(cache, layer);
  for (auto [store, fresh] : {std::pair{&cache.keys[index], &k}, std::pair{&cache.values[index], &v}}) {
    if (!store->defined() || store->size(1) < end) {
      const int64_t capacity = store->defined() ? std::max(end, 2 * store->size(1)) : std::max<int64_t>(end, 256);
      const at::Tensor grown = at::empty({fresh->size(0), capacity, fresh->size(2), fresh->size(3)}, fresh->options());
      if (store->defined()) grown.narrow(1, 0, cache.length).copy_(store->narrow(1, 0, cache.length));
      *store = grown;
    }
    store->narrow(1, cache.length, fresh->size(1)).copy_(*fresh);
  }
}

}  // namespace

AttentionMixer::AttentionMixer(const ModelConfig& c, int64_t layer, at::Device device)
    : qkv(c.hidden_size, {c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim}, device,
          /*last_apart=*/true),  // q and k are rotated into memory of their own
      output(c.num_heads * c.head_dim, {c.hidden_size}, device),
      config_(c),
      heads_(c.num_heads),
      kv_heads_(c.num_kv_heads),
      head_dim_(c.head_dim),
      window_(c.window_of(layer)),
      scale_(c.score_scale(layer)) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  if (c.distance_bias_window > 0) {
    distance_bias = at::zeros({heads_, c.distance_bias_window}, options).requires_grad_(true);
  }
  if (c.has_offset()) tau = at::full({heads_}, c.offset_init, options).requires_grad_(c.offset_trainable);
  if (c.has_sink()) sink = at::zeros({heads_}, options).requires_grad_(true);
  if (c.positions == "alibi") {
    slopes = at::tensor(alibi_slopes(heads_), at::kFloat).to(device).requires_grad_(c.alibi_trainable);
  }
  if (c.positions == "transformer_xl") {
    r_proj = at::zeros({heads_ * head_dim_, c.hidden_size}, options).requires_grad_(true);
    content_bias = at::zeros({heads_, head_dim_}, options).requires_grad_(true);
    position_bias = at::zeros({heads_, head_dim_}, options).requires_grad_(true);
  }
  const auto parameter = [&](int64_t size, double value) {
    return at::full({size}, value, options).requires_grad_(true);
  };
  if (c.attention_bias) {
    q_bias = parameter(heads_ * head_dim_, 0).requires_grad_(c.query_bias);
    k_bias = parameter(kv_heads_ * head_dim_, 0);
    v_bias = parameter(kv_heads_ * head_dim_, 0);
  }
  if (c.output_bias) o_bias = parameter(c.hidden_size, 0);
  if (c.qk_norm) {
    q_norm = parameter(head_dim_, 1);
    k_norm = parameter(head_dim_, 1);
  }
}

NamedTensors AttentionMixer::parameters() const {
  const CheckpointNames names(config_);
  NamedTensors out = {
      {names.q, qkv.parts()[0]}, {names.k, qkv.parts()[1]}, {names.v, qkv.parts()[2]}, {names.o, output.parts()[0]}};
  for (const auto& [name, tensor] : {std::pair{&names.q_bias, &q_bias},
                                     {&names.k_bias, &k_bias},
                                     {&names.v_bias, &v_bias},
                                     {&names.o_bias, &o_bias},
                                     {&names.q_norm, &q_norm},
                                     {&names.k_norm, &k_norm},
                                     {&names.distance_bias, &distance_bias},
                                     {&names.offset, &tau},
                                     {&names.sink, &sink},
                                     {&names.slopes, &slopes},
                                     {&names.r_proj, &r_proj},
                                     {&names.content_bias, &content_bias},
                                     {&names.position_bias, &position_bias}}) {
    if (tensor->defined()) out.emplace_back(*name, *tensor);
  }
  return out;
}

bool AttentionMixer::init_parameter(const std::string& name, at::Tensor& fresh, const ModelConfig& c,
                                    at::Generator& generator) const {
  if (fresh.dim() < 2) return false;
  fresh.normal_(0, name == CheckpointNames(c).distance_bias ? c.distance_bias_init_std : c.init_std_of(name),
                generator);
  return true;
}

at::Tensor AttentionMixer::by_head(const at::Tensor& part, const at::Tensor& bias, int64_t heads) const {
  return (bias.defined() ? part + bias.to(part.scalar_type()) : part)
      .view({part.size(0), part.size(1), heads, head_dim_});
}

at::Tensor AttentionMixer::normed(const at::Tensor& heads, const at::Tensor& norm) const {
  return norm.defined() ? ops::rms_norm(heads, norm, config_.norm_eps) : heads;
}

ops::AttentionOptions AttentionMixer::attention_options() const {
  ops::AttentionOptions options;
  options.normalizer = config_.normalizer;
  options.offset = config_.offset;
  options.window = window_;
  options.scale = scale_;
  options.sink = sink;
  options.alibi_slopes = slopes;
  return options;
}

at::Tensor AttentionMixer::project(const at::Tensor& heads) const {
  const at::Tensor y = output.forward(heads.reshape({heads.size(0), heads.size(1), heads_ * head_dim_}))[0];
  return o_bias.defined() ? y + o_bias.to(y.scalar_type()) : y;
}

at::Tensor AttentionMixer::stream(const std::vector<at::Tensor>& parts, int64_t layer, KVCache& cache) const {
  const size_t index = place_in(cache, layer);
  const auto joined = [&](const at::Tensor& store, const at::Tensor& fresh) {
    return store.defined() && cache.length > 0 ? at::cat({store, fresh}, 1) : fresh;
  };
  StreamingInputs in{.q = normed(by_head(parts[0], q_bias, heads_), q_norm),
                     .k = joined(cache.keys[index], normed(by_head(parts[1], k_bias, kv_heads_), k_norm)),
                     .v = joined(cache.values[index], by_head(parts[2], v_bias, kv_heads_)),
                     .distance_bias = distance_bias,
                     .tau = tau,
                     .attention = attention_options(),
                     .rope = rope_at(config_, cache.streaming->size() + 1)};
  cache.keys[index] = kept(in.k, *cache.streaming);
  cache.values[index] = kept(in.v, *cache.streaming);
  return streaming_attention(in, *cache.streaming);
}

at::Tensor AttentionMixer::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                                   at::Tensor* stats) const {
  const int64_t batch = x.value.size(0), length = x.value.size(1);
  const int64_t start = options.cache ? options.cache->length : 0;
  const auto parts = qkv.forward(x);
  if (options.cache && options.cache->streaming) {
    if (stats || options.on_attention_input)
      fail("model", "a streaming cache serves neither statistics nor maps of attention");
    return project(stream(parts, layer, *options.cache));
  }
  if (r_proj.defined()) return project(attend_relative(x, parts, layer, options, stats));
  const Rope rope = rope_at(config_, options.packed ? options.packed->longest : start + length);
  ops::RopeOptions turned{.rotary_dim = rope.rotary_dim, .interleaved = rope.interleaved, .scaling = rope.scaling};
  if (options.packed) turned.positions = options.packed->positions;
  const auto rotated = [&](const at::Tensor& heads) {
    return rope.base > 0 ? ops::rope(heads, rope.base, start, turned) : heads;
  };
  const LayerProbes probe(options.probes, layer);
  at::Tensor q = probe("attention.q.projected", by_head(parts[0], q_bias, heads_));
  at::Tensor k = probe("attention.k.projected", by_head(parts[1], k_bias, kv_heads_));
  at::Tensor v = probe("attention.v", by_head(parts[2], v_bias, kv_heads_));
  if (q_norm.defined()) q = probe("attention.q.normed", normed(q, q_norm));
  if (k_norm.defined()) k = probe("attention.k.normed", normed(k, k_norm));
  q = probe("attention.q", rotated(q));
  k = probe("attention.k", rotated(k));
  if (options.cache) {
    extend_cache(*options.cache, layer, k, v);
    k = options.cache->keys[static_cast<size_t>(layer)].narrow(1, 0, start + length);
    v = options.cache->values[static_cast<size_t>(layer)].narrow(1, 0, start + length);
  }
  if (options.on_attention_input) options.on_attention_input(layer, q, k);
  ops::AttentionOptions attention = attention_options();
  attention.return_stats = stats != nullptr;
  attention.deterministic = options.deterministic;
  if (probe.wants("attention.scores") || probe.wants("attention.weights")) {
    if (options.packed) fail("model", "packed sequences: expected no probe of scores or weights, found one");
    return project(probe("attention.heads", attend_explicitly(q, k, v, start, probe, stats)));
  }
  if (options.packed)
    return project(probe("attention.heads", attend_packed(q, k, v, *options.packed, attention, stats).unsqueeze(0)));
  const auto [out, lse, statistics] =
      options.cache && length <= ops::kFewRows
          ? ops::decode(q, k, v, at::full({batch}, start + length, q.options().dtype(at::kLong)), distance_bias, tau,
                        attention)
          : ops::attention(q, k, v, distance_bias, tau, attention);
  if (stats) *stats = statistics;
  return project(probe("attention.heads", out));
}

at::Tensor AttentionMixer::attend_explicitly(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             int64_t first, const LayerProbes& probe, at::Tensor* stats) const {
  const AttentionTerms own = terms();
  const at::Tensor scores = probe("attention.scores", attention_scores(q, k, own, first));
  const at::Tensor weights = probe("attention.weights", normalized_weights(scores, own));
  if (stats) *stats = weight_statistics(weights);
  return weighted_values(weights, v);
}

at::Tensor AttentionMixer::attend_packed(const at::Tensor& q, at::Tensor k, at::Tensor v, const PackedSequences& packed,
                                         ops::AttentionOptions options, at::Tensor* stats) const {
  k = k.squeeze(0), v = v.squeeze(0);
  if (packed.keys.defined()) k = k.index_select(0, packed.keys), v = v.index_select(0, packed.keys);
  options.cu_seqlens_q = packed.cu_seqlens_q;
  options.cu_seqlens_k = packed.cu_seqlens_k;
  const auto [out, lse, statistics] = ops::attention(q.squeeze(0), k, v, distance_bias, tau, options);
  if (stats) *stats = statistics;
  return out;
}

}  // namespace lazy
