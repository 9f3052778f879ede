// The key-value cache of incremental decoding. It retains all tokens or, as a streaming cache, only some of them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "model/streaming_cache.h"

namespace lazy {

// Keys and values of earlier tokens: one tensor each per layer, (batch, capacity, kv_heads, head_dim), of which the
// first `length` tokens are valid. With `streaming` the tensors contain only the retained tokens, and keys are stored
// before RoPE. Streaming tensors are replaced and never modified in place, so a copy of the cache is a snapshot.
struct KVCache {
  std::vector<at::Tensor> keys, values;
  // Recurrent states of mixers other than attention: a list of tensors of constant size per layer. Only
  // GraphedStateRunner modifies them in place.
  std::vector<std::vector<at::Tensor>> states;
  // The total attention weight that each retained token has received: one tensor (batch, retained tokens, kv_heads)
  // fp32 per layer. Used only if streaming->heavy > 0.
  std::vector<at::Tensor> received;
  int64_t length = 0;
  std::optional<StreamingCache> streaming;
};

}  // namespace lazy
