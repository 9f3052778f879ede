// Attention under a streaming cache (model/streaming_cache.h), without retraining: keys are kept as they were before
// RoPE, and keys and query are rotated by their places in the cache.
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

// The output for each of the new tokens, (batch, length, heads, head_dim), as if they came one at a time and the cache
// was cut after each. One token is computed by that definition. Many are computed at once: what is cut for a later
// token was never changed by it, so every token's cache is known beforehand.
at::Tensor streaming_attention(const StreamingInputs& in, const StreamingCache& cache);

// What the cache keeps of (batch, tokens, ...).
at::Tensor apply_streaming_window(const at::Tensor& tokens, const StreamingCache& cache);

}  // namespace lazy
