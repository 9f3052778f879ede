#include "model/mixers/attention.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/language_model.h"
#include "ops/attention.h"
#include "ops/decode.h"
#include "ops/rope.h"

namespace lazy {
namespace {

// Appends k and v (batch, length, kv_heads, head_dim) to the layer's cache.
void extend_cache(KVCache& cache, int64_t layer, const at::Tensor& k,
                                               const at::Tensor& v) {
  if (at::GradMode::is_enabled()) fail("model", "a KV cache serves inference: disable gradients first");
  const int64_t end = cache.length + k.size(1);
  const auto index = static_cast<size_t>(layer);
  if (cache.keys.size() <= index) {
    cache.keys.resize(index + 1);
    cache.values.resize(index + 1);
  }
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

AttentionMixer::AttentionMixer(const ModelConfig& c, at::Device device)
    : qkv(c.hidden_size, {c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim}, device,
          /*last_apart=*/true),  // q and k are rotated into memory of their own
      output(c.num_heads * c.head_dim, {c.hidden_size}, device),
      heads_(c.num_heads),
      kv_heads_(c.num_kv_heads),
      head_dim_(c.head_dim),
      window_(c.window),
      rope_base_(c.rope_base),
      normalizer_(c.normalizer),
      offset_(c.offset) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  if (c.distance_bias_window > 0) {
    distance_bias = at::zeros({heads_, c.distance_bias_window}, options).requires_grad_(true);
  }
  if (c.has_offset()) tau = at::full({heads_}, c.offset_init, options).requires_grad_(c.offset_trainable);
}

at::Tensor AttentionMixer::forward(const Normalized& x, int64_t layer, const ForwardOptions& options,
                                   at::Tensor* stats) const {
  const int64_t batch = x.value.size(0), length = x.value.size(1);
  const int64_t start = options.cache ? options.cache->length : 0;
  const auto parts = qkv.forward(x);
  const auto rotated = [&](const at::Tensor& x) { return rope_base_ > 0 ? ops::rope(x, rope_base_, start) : x; };
  const at::Tensor q = rotated(parts[0].view({batch, length, heads_, head_dim_}));
  at::Tensor k = rotated(parts[1].view({batch, length, kv_heads_, head_dim_}));
  at::Tensor v = parts[2].view({batch, length, kv_heads_, head_dim_});
  if (options.cache) {
    extend_cache(*options.cache, layer, k, v);
    k = options.cache->keys[static_cast<size_t>(layer)].narrow(1, 0, start + length);
    v = options.cache->values[static_cast<size_t>(layer)].narrow(1, 0, start + length);
  }
  if (options.on_attention_input) options.on_attention_input(layer, q, k);
  ops::AttentionOptions attention;
  attention.normalizer = normalizer_;
  attention.offset = offset_;
  attention.window = window_;
  attention.return_stats = stats != nullptr;
  attention.deterministic = options.deterministic;
  const auto [out, lse, statistics] =
      options.cache && length <= ops::kFewRows
          ? ops::decode(q, k, v, at::full({batch}, start + length, at::kLong), distance_bias, tau, attention)
          : ops::attention(q, k, v, distance_bias, tau, attention);
  if (stats) *stats = statistics;
  return output.forward(out.reshape({batch, length, heads_ * head_dim_}))[0];
}

}  // namespace lazy
