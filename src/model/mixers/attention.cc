#include "model/mixers/attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "core/error.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/mixers/streaming.h"
#include "model/paged_keys.h"
#include "model/parameters.h"
#include "model/positions/positions.h"
#include "model/positions/relative.h"
#include "ops/attention.h"
#include "ops/decode.h"
#include "ops/kv_cache_write.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace lazy {

namespace {

// Returns the index of the layer in the cache's lists, which are extended if necessary.
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
  for (auto [store, tensor] : {std::pair{&cache.keys[index], &k}, std::pair{&cache.values[index], &v}}) {
    if (!store->defined() || store->size(1) < end) {
      const int64_t capacity = store->defined() ? std::max(end, 2 * store->size(1)) : std::max<int64_t>(end, 256);
      const at::Tensor grown =
          at::empty({tensor->size(0), capacity, tensor->size(2), tensor->size(3)}, tensor->options());
      if (store->defined()) grown.narrow(1, 0, cache.length).copy_(store->narrow(1, 0, cache.length));
      *store = grown;
    }
    store->narrow(1, cache.length, tensor->size(1)).copy_(*tensor);
  }
}

}  // namespace

AttentionMixer::AttentionMixer(const ModelConfig& c, int64_t layer, at::Device device)
    : qkv(c.hidden_size,
          {c.attention.num_heads * c.attention.head_dim, c.attention.num_kv_heads * c.attention.head_dim,
           c.attention.num_kv_heads * c.attention.head_dim},
          device,
          /*last_apart=*/true),  // RoPE copies q and k; if v is separate, the unrotated q and k can be freed
      output(c.attention.num_heads * c.attention.head_dim, {c.hidden_size}, device),
      config_(c),
      heads_(c.attention.num_heads),
      kv_heads_(c.attention.num_kv_heads),
      head_dim_(c.attention.head_dim),
      window_(c.window_of(layer)),
      scale_(c.score_scale(layer)) {
  config_.positions.rope_base = c.rope_base_of(layer);
  if (window_ > 0 && !c.positions.scale_windowed_layers) config_.positions.rope_scaling = {};
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  if (c.attention.distance_bias_window > 0) {
    distance_bias = at::zeros({heads_, c.attention.distance_bias_window}, options).requires_grad_(true);
  }
  if (c.has_offset())
    tau = at::full({heads_}, c.attention.offset_init, options).requires_grad_(c.attention.offset_trainable);
  if (c.has_sink())
    sink = at::full({heads_}, c.attention.sink_init, options).requires_grad_(c.attention.sink_trainable);
  if (c.gate_size() > 0) gate = Linear(c.hidden_size, {c.gate_size()}, device);
  if (c.positions.kind == PositionKind::alibi) {
    slopes = at::tensor(alibi_slopes(heads_), at::kFloat).to(device).requires_grad_(c.positions.alibi_trainable);
  }
  if (c.positions.kind == PositionKind::transformer_xl) {
    r_proj = at::zeros({heads_ * head_dim_, c.hidden_size}, options).requires_grad_(true);
    content_bias = at::zeros({heads_, head_dim_}, options).requires_grad_(true);
    position_bias = at::zeros({heads_, head_dim_}, options).requires_grad_(true);
  }
  const auto parameter = [&](int64_t size, double value) {
    return at::full({size}, value, options).requires_grad_(true);
  };
  if (c.attention.qkv_bias) {
    q_bias = parameter(heads_ * head_dim_, 0).requires_grad_(c.attention.query_bias);
    k_bias = parameter(kv_heads_ * head_dim_, 0);
    v_bias = parameter(kv_heads_ * head_dim_, 0);
  }
  if (c.attention.output_bias) o_bias = parameter(c.hidden_size, 0);
  if (c.attention.qk_norm) {
    const double initial = c.norm.unit_offset ? 0 : 1;
    q_norm = parameter(c.attention.qk_norm_joint ? heads_ * head_dim_ : head_dim_, initial);
    k_norm = parameter(c.attention.qk_norm_joint ? kv_heads_ * head_dim_ : head_dim_, initial);
  }
}

NamedTensors AttentionMixer::parameters() const {
  const CheckpointNames names(config_);
  NamedTensors out = {{names.q, qkv.parts()[0]}};
  for (const at::Tensor& part : gate.parts()) out.emplace_back(names.output_gate, part);
  out.insert(out.end(), {{names.k, qkv.parts()[1]}, {names.v, qkv.parts()[2]}, {names.o, output.parts()[0]}});
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

bool AttentionMixer::init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& c,
                                    at::Generator& generator) const {
  if (tensor.dim() < 2) return false;
  tensor.normal_(0, name == CheckpointNames(c).distance_bias ? c.attention.distance_bias_init_std : c.init_std_of(name),
                 generator);
  return true;
}

bool AttentionMixer::computes_norm(const ForwardOptions& options) const {
  // This is supported only without an output gate, because a gate also reads the norm's output.
  return options.paged && !options.activation_hooks && !r_proj.defined() && gate.parts().empty() &&
         !qkv.rounds_inputs();
}

bool AttentionMixer::describe(ops::FusedDecodeLayer& layer, const ForwardOptions& options) const {
  for (const at::Tensor& more : {q_bias, k_bias, v_bias, o_bias, q_norm, k_norm}) {
    if (more.defined()) return false;
  }
  if (!computes_norm(options) || options.on_attention_input || cache_rounding_.used() || output.rounds_inputs())
    return false;
  const at::ScalarType dtype = options.paged->keys.front().scalar_type();
  layer.qkv = qkv.matrix(dtype);
  layer.output = output.matrix(dtype);
  layer.heads = heads_;
  layer.attention = *attention_terms();
  const Rope rope = rope_at(config_, 1);
  layer.pages.rope_base = rope.base;
  layer.pages.rope = {.rotary_dim = rope.rotary_dim, .interleaved = rope.interleaved, .scaling = rope.scaling};
  return true;
}

at::Tensor AttentionMixer::by_head(const at::Tensor& part, const at::Tensor& bias, int64_t heads) const {
  return (bias.defined() ? part + bias.to(part.scalar_type()) : part)
      .view({part.size(0), part.size(1), heads, head_dim_});
}

bool AttentionMixer::set_cache_rounding(const ops::Rounding& rounding) const {
  if (r_proj.defined()) return false;  // not supported for Transformer-XL, which caches keys in KVCache::states
  cache_rounding_ = rounding;
  return true;
}

at::Tensor AttentionMixer::as_cached(const at::Tensor& tokens) const {
  if (!cache_rounding_.used()) return tokens;
  if (cache_rounding_.unit != ops::RoundingUnit::channel) return ops::round_to_nearest(tokens, cache_rounding_);
  return ops::round_to_nearest(tokens.flatten(2), cache_rounding_).view(tokens.sizes());
}

at::Tensor AttentionMixer::normed(const at::Tensor& heads, const at::Tensor& norm) const {
  if (!norm.defined()) return heads;
  const at::Tensor factor = config_.norm.unit_offset ? norm + 1 : norm;
  if (!config_.attention.qk_norm_joint) return ops::rms_norm(heads, factor, config_.norm.eps);
  return ops::rms_norm(heads.flatten(2), factor, config_.norm.eps).view(heads.sizes());
}

ops::AttentionOptions AttentionMixer::attention_options() const {
  ops::AttentionOptions options;
  options.normalizer = name(config_.attention.normalizer);
  options.offset = name(config_.attention.offset);
  options.window = window_;
  options.scale = scale_;
  if (config_.attention.softcap > 0) options.softcap = config_.attention.softcap;
  options.sink = sink;
  options.alibi_slopes = slopes;
  return options;
}

std::vector<const Linear*> AttentionMixer::products() const {
  if (gate.parts().empty()) return {&qkv, &output};
  return {&qkv, &output, &gate};
}

at::Tensor AttentionMixer::project(const at::Tensor& heads, const NormOutput& x, const LayerHooks& probe) const {
  at::Tensor out = heads;
  if (!gate.parts().empty())
    out = heads * probe("attention.gate", at::sigmoid(gate.forward(x)[0].unflatten(2, {heads_, -1})));
  out = probe("attention.heads", out).reshape({out.size(0), out.size(1), heads_ * head_dim_});
  const at::Tensor y = x.pending ? output.forward_add_residual(out, x.from) : output.forward(out)[0];
  return o_bias.defined() ? y + o_bias.to(y.scalar_type()) : y;
}

at::Tensor AttentionMixer::stream(const std::vector<at::Tensor>& parts, int64_t layer, KVCache& cache) const {
  const size_t index = place_in(cache, layer);
  const auto joined = [&](const at::Tensor& store, const at::Tensor& tensor) {
    return store.defined() && cache.length > 0 ? at::cat({store, tensor}, 1) : tensor;
  };
  StreamingInputs in{.q = normed(by_head(parts[0], q_bias, heads_), q_norm),
                     .k = joined(cache.keys[index], as_cached(normed(by_head(parts[1], k_bias, kv_heads_), k_norm))),
                     .v = joined(cache.values[index], as_cached(by_head(parts[2], v_bias, kv_heads_))),
                     .distance_bias = distance_bias,
                     .tau = tau,
                     .attention = attention_options(),
                     .rope = rope_at(config_, cache.streaming->size() + 1)};
  if (cache.streaming->heavy > 0) {
    cache.received.resize(std::max(cache.received.size(), index + 1));
    const at::Tensor out = heaviest_attention(in, cache.received[index], *cache.streaming);
    cache.keys[index] = in.k;
    cache.values[index] = in.v;
    return out;
  }
  cache.keys[index] = apply_streaming_window(in.k, *cache.streaming);
  cache.values[index] = apply_streaming_window(in.v, *cache.streaming);
  return streaming_attention(in, *cache.streaming);
}

at::Tensor AttentionMixer::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                                   at::Tensor* stats) const {
  const int64_t batch = x.sizes()[0], length = x.sizes()[1];
  const int64_t start = options.cache ? options.cache->length : 0;
  const LayerHooks probe(options.activation_hooks, layer);
  if (options.cache && options.cache->streaming) {
    if (stats || options.on_attention_input)
      fail("model", "a streaming cache supports neither attention statistics nor attention maps");
    return project(stream(qkv.forward(x), layer, *options.cache), x, probe);
  }
  if (r_proj.defined()) return project(attend_relative(x, qkv.forward(x), layer, options, stats), x, probe);
  // With a paged KV cache, the rotation does not depend on the length of the sequence, because
  // paged_unsupported_reason() rejects models for which it does. Any length (here 1) is therefore valid.
  const Rope rope = rope_at(config_, options.packed ? options.packed->longest : options.paged ? 1 : start + length);
  ops::RopeOptions turned{.rotary_dim = rope.rotary_dim, .interleaved = rope.interleaved, .scaling = rope.scaling};
  if (options.packed) turned.positions = options.packed->positions;
  if (options.paged) turned.positions = options.paged->positions;
  // With a paged KV cache, the kernel that writes the keys to the cache applies RoPE. However, RoPE is applied here
  // if an activation hook or the rounding of the cache needs the rotated keys first.
  const bool rotate_on_cache_write =
      options.paged && !options.activation_hooks && !options.on_attention_input && !cache_rounding_.used();
  ops::AttentionOptions attention = attention_options();
  attention.return_stats = stats != nullptr;
  attention.deterministic = options.deterministic;
  if (rotate_on_cache_write && x.pending && !q_bias.defined() && !q_norm.defined()) {
    const ops::PagePlaces places = places_of(layer, rope.base, turned, *options.paged);
    if (!options.paged->sources.defined() && ops::can_write_pages(places))
      return project(attend_paged(qkv.decode_kv_cache_write(x, places), layer, *options.paged, attention, stats), x,
                     probe);
  }
  const auto parts = qkv.forward(x);
  // In a training pass without a cache, packing or hooks, the attention kernel applies RoPE.
  const bool rotate_in_kernel = rope.base > 0 && !options.cache && !options.packed && !options.paged &&
                                !options.activation_hooks && !options.on_attention_input && !cache_rounding_.used();
  const auto rotated = [&](const at::Tensor& heads) {
    return rope.base > 0 && !rotate_on_cache_write && !rotate_in_kernel ? ops::rope(heads, rope.base, start, turned)
                                                                        : heads;
  };
  at::Tensor q = probe("attention.q.projected", by_head(parts[0], q_bias, heads_));
  at::Tensor k = probe("attention.k.projected", by_head(parts[1], k_bias, kv_heads_));
  at::Tensor v = probe("attention.v", by_head(parts[2], v_bias, kv_heads_));
  if (q_norm.defined()) q = probe("attention.q.normed", normed(q, q_norm));
  if (k_norm.defined()) k = probe("attention.k.normed", normed(k, k_norm));
  q = probe("attention.q", rotated(q));
  k = as_cached(probe("attention.k", rotated(k)));
  v = as_cached(v);
  if (options.cache) {
    extend_cache(*options.cache, layer, k, v);
    k = options.cache->keys[static_cast<size_t>(layer)].narrow(1, 0, start + length);
    v = options.cache->values[static_cast<size_t>(layer)].narrow(1, 0, start + length);
  }
  if (options.on_attention_input) options.on_attention_input(layer, q, k);
  if (probe.wants("attention.scores") || probe.wants("attention.weights")) {
    if (options.packed) fail("model", "packed sequences: hooks of attention scores and weights are not supported");
    return project(attend_explicitly(q, k, v, start, probe, stats), x, probe);
  }
  if (options.packed) return project(attend_packed(q, k, v, *options.packed, attention, stats).unsqueeze(0), x, probe);
  if (options.paged) {
    ops::PageWrite write{places_of(layer, rotate_on_cache_write ? rope.base : 0, turned, *options.paged), q, k, v};
    const at::Tensor out = options.paged->sources.defined()
                               ? attend_gathered(write, *options.paged, attention, stats)
                               : attend_paged(ops::kv_cache_write(write), layer, *options.paged, attention, stats);
    return project(out, x, probe);
  }
  const auto [out, lse, statistics] =
      options.cache && length <= ops::kMaxDecodeRows
          ? ops::decode(q, k, v, at::full({batch}, start + length, q.options().dtype(at::kLong)), distance_bias, tau,
                        attention)
      : rotate_in_kernel ? ops::rotated_attention(q, k, v, distance_bias, tau, rope.base, turned, attention)
                         : ops::attention(q, k, v, distance_bias, tau, attention);
  if (stats) *stats = statistics;
  return project(out, x, probe);
}

at::Tensor AttentionMixer::attend_explicitly(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             int64_t first, const LayerHooks& probe, at::Tensor* stats) const {
  const ops::AttentionTerms own = *attention_terms();
  const at::Tensor scores = probe("attention.scores", ops::attention_scores(q, k, own, first));
  const at::Tensor weights = probe("attention.weights", ops::normalized_weights(scores, own));
  if (stats) *stats = ops::weight_statistics(weights);
  return ops::weighted_values(weights, v);
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

ops::PagePlaces AttentionMixer::places_of(int64_t layer, double rope_base, const ops::RopeOptions& rope,
                                          const PagedKeys& paged) const {
  return {.keys = paged.keys[static_cast<size_t>(layer)],
          .values = paged.values[static_cast<size_t>(layer)],
          .slots = paged.slots,
          .rope_base = rope_base,
          .rope = rope,
          .longest = paged.longest};
}

at::Tensor AttentionMixer::attend_gathered(const ops::PageWrite& write, const PagedKeys& paged,
                                           ops::AttentionOptions options, at::Tensor* stats) const {
  const auto [q, keys, values] = ops::kv_cache_write_and_gather(write, paged.sources);
  options.cu_seqlens_q = paged.cu_seqlens_q;
  options.cu_seqlens_k = paged.cu_seqlens_k;
  const auto [out, lse, statistics] = ops::attention(q.squeeze(0), keys, values, distance_bias, tau, options);
  if (stats) *stats = statistics;
  return out.unsqueeze(0);
}

at::Tensor AttentionMixer::attend_paged(const at::Tensor& q, int64_t layer, const PagedKeys& paged,
                                        const ops::AttentionOptions& options, at::Tensor* stats) const {
  const at::Tensor &keys = paged.keys[static_cast<size_t>(layer)], &values = paged.values[static_cast<size_t>(layer)];
  at::Tensor out, lse, statistics;
  if (q.size(1) <= ops::kMaxDecodeRows) {
    std::tie(out, lse, statistics) = ops::decode(q, keys, values, paged.lengths, distance_bias, tau, options,
                                                 paged.block_table, {}, /*invariant=*/true);
  } else {
    // The batch consists of one sequence. Gather all of its tokens from its pages, in order.
    const auto gathered = [&](const at::Tensor& pool) {
      const int64_t pages = (paged.longest + pool.size(1) - 1) / pool.size(1);
      return pool.index_select(0, paged.block_table[0].narrow(0, 0, pages))
          .flatten(0, 1)
          .narrow(0, 0, paged.longest)
          .unsqueeze(0);
    };
    std::tie(out, lse, statistics) = ops::attention(q, gathered(keys), gathered(values), distance_bias, tau, options);
  }
  if (stats) *stats = statistics;
  return out;
}

namespace {

// Returns the normalized input of the layer, detached from autograd. In Transformer-XL (arXiv 1901.02860), this input
// is the memory from which later segments compute keys and values.
at::Tensor detached_memory(const NormOutput& x) {
  if (!x.from.defined()) return x.value.detach();
  const at::Tensor from = x.from.detach();
  if (!x.bias.defined()) return ops::rms_norm(from, x.weight, x.eps);
  return at::layer_norm(from.to(at::kFloat), x.weight.sizes(), x.weight, x.bias, x.eps).to(from.scalar_type());
}

// Computes relative attention for each document of a packed batch separately.
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
         "attention maps: not supported with transformer_xl positions, whose scores depend on more than q and k");
  }
  const LayerHooks probe(options.activation_hooks, layer);
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
                    .segments = {config_.positions.segment_length, config_.positions.memory_length}};
  in.attention.return_stats = stats != nullptr;
  if (in.segments.memory > 0 && at::GradMode::is_enabled()) {
    // If activation hooks replaced the keys or values, the memory of the following segments uses the replacements too.
    const auto past = replaced ? std::vector<at::Tensor>() : qkv.forward(detached_memory(x));
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
  const at::Tensor encodings =
      relative_encodings(relative_reach(longest, in.segments, window_), config_.hidden_size,
                         config_.positions.clamp_length, x.value.options().requires_grad(false));
  in.r = at::linear(encodings, r_proj).unflatten(1, {heads_, head_dim_});
  if (probe.wants("attention.scores") || probe.wants("attention.weights")) {
    if (options.packed) fail("model", "packed sequences: hooks of attention scores and weights are not supported");
    const at::Tensor scores = probe("attention.scores", relative_scores(in));
    const at::Tensor weights = probe("attention.weights", ops::normalized_weights(scores, *attention_terms()));
    if (stats) *stats = ops::weight_statistics(weights);
    // Statistic 0 is the weight of the first key of the text. The cache no longer contains this key, so its weight is
    // 0.
    if (stats && in.first > 0) stats->select(0, 0).zero_();
    return relative_values(weights, in);
  }
  const auto [out, statistics] = options.packed ? relative_packed(in, *options.packed) : relative_attention(in);
  if (stats) *stats = statistics.defined() && options.packed ? statistics.squeeze(1) : statistics;
  return out;
}

}  // namespace lazy
