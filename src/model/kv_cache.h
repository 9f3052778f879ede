// The key-value cache of incremental decoding, whole or as a streaming cache.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lazy {

// The tokens that a streaming cache keeps (StreamingLLM, Xiao et al. 2023, arXiv 2309.17453): the first ones, which act
// as attention sinks, and the latest ones. Memory and the attended length stay constant for endless text.
//
// After each token the cache is cut to its first `sinks` and last `recent` tokens, so a token attends to at most
// sinks + recent + 1 keys including its own. Positions, distances and the visible count follow the place in the cache.
struct StreamingCache {
  int64_t sinks = 4, recent = 508;
  int64_t size() const { return sinks + recent; }
  bool operator==(const StreamingCache&) const = default;
  std::string name() const;  // "streaming:4+508"
  // The inverse of name(). Error naming `option`.
  static StreamingCache parse(const std::string& text, const std::string& option);
};

// Keys and values of earlier tokens, one pair per layer, (batch, capacity, kv_heads, head_dim), filled up to `length`.
// With `streaming` the tensors hold only the kept tokens, keys before RoPE, and are replaced, never changed in place:
// a copy of the cache is a checkpoint to return to.
struct KVCache {
  std::vector<at::Tensor> keys, values;
  // Recurrent states of mixers other than attention, a list per layer, of constant size. Never changed in place.
  std::vector<std::vector<at::Tensor>> states;
  int64_t length = 0;
  std::optional<StreamingCache> streaming;
};

}  // namespace lazy
