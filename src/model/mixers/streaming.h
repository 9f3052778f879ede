// Attention with a key-value cache of constant size (StreamingCache in model/kv_cache.h), for models that were trained
// without such a cache. Cached keys are stored before RoPE. Keys and queries are rotated according to their positions
// within the cache, not within the text.
#pragma once
#include <ATen/core/Tensor.h>

#include "model/config.h"
#include "model/kv_cache.h"
#include "ops/attention.h"

namespace lazy {

struct StreamingInputs {
  at::Tensor q;  // (batch, length, heads, head_dim), before RoPE
  // (batch, kept + length, kv_heads, head_dim), before RoPE: the cached tokens, followed by the new tokens.
  at::Tensor k, v;
  at::Tensor distance_bias, tau;
  ops::AttentionOptions attention;  // only normalizer, offset and window are used; statistics are not supported
  Rope rope;
};

// Returns the output of each new token, (batch, length, heads, head_dim). The result is defined as if the tokens
// arrived one at a time and the cache was truncated after each token. Several tokens are nevertheless computed in
// blocks, which is possible because the contents of the cache at each token are known in advance.
at::Tensor streaming_attention(const StreamingInputs& in, const StreamingCache& cache);

// Like streaming_attention, for caches with StreamingCache::heavy > 0, which retain the tokens that have received the
// most attention. `received` (batch, kept, kv_heads) is the total attention weight that each cached token has received;
// it is undefined for an empty cache. On return, in.k, in.v and `received` contain only the tokens that the cache
// retains after the last token.
at::Tensor heaviest_attention(StreamingInputs& in, at::Tensor& received, const StreamingCache& cache);

// Selects from `tokens` (batch, tokens, ...) the tokens that the cache retains.
at::Tensor apply_streaming_window(const at::Tensor& tokens, const StreamingCache& cache);

}  // namespace lazy
