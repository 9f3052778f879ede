// The key-value cache of incremental decoding, full or streaming.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "model/streaming_cache.h"

namespace lazy {

// Keys and values of earlier tokens, one pair per layer, (batch, capacity, kv_heads, head_dim), filled up to `length`.
// With `streaming` the tensors hold only the kept tokens, with keys before RoPE. They are then replaced and never
// modified in place, so a copy of the cache is a snapshot.
struct KVCache {
  std::vector<at::Tensor> keys, values;
  // Recurrent states of mixers other than attention: a list per layer, of constant size. Only CacheSteps modifies them
  // in place.
  std::vector<std::vector<at::Tensor>> states;
  // With streaming->heavy: per layer, the weight that each kept token has received, (batch, kept, kv_heads) fp32.
  std::vector<at::Tensor> received;
  int64_t length = 0;
  std::optional<StreamingCache> streaming;
};

}  // namespace lazy
