// Attention with a key-value cache of constant size (model/kv_cache.h), without retraining. Cached keys are stored
// before RoPE; keys and queries are rotated by their positions within the cache.
#pragma once
#include <ATen/core/Tensor.h>

#include "model/config.h"
#include "model/kv_cache.h"
#include "ops/attention.h"

namespace lazy {

struct StreamingInputs {
  at::Tensor q;  // (batch, length, heads, head_dim), not rotated
  at::Tensor k,
      v;  // (batch, kept + length, kv_heads, head_dim), not rotated: what the cache holds, then the new tokens
  at::Tensor distance_bias, tau;
  ops::AttentionOptions attention;  // normalizer, offset, window; no statistics
  Rope rope;
};

// The output of each new token, (batch, length, heads, head_dim), as if tokens arrived one at a time and the cache was
// truncated after each. A single token is computed by that definition. Several tokens are computed in blocks, because
// the cache contents at every token are known in advance.
at::Tensor streaming_attention(const StreamingInputs& in, const StreamingCache& cache);

// The same with StreamingCache::heavy. `received` (batch, kept, kv_heads): the weights of the cached tokens, undefined
// for none. k, v and `received` become what the cache keeps after the last token.
at::Tensor heaviest_attention(StreamingInputs& in, at::Tensor& received, const StreamingCache& cache);

// The part of (batch, tokens, ...) that the cache keeps.
at::Tensor apply_streaming_window(const at::Tensor& tokens, const StreamingCache& cache);

}  // namespace lazy
