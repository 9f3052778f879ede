// The key-value cache of incremental decoding, full or streaming.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lazy {

// The tokens kept by a streaming cache (StreamingLLM, Xiao et al. 2023, arXiv 2309.17453): the first ones, which act as
// attention sinks, and the latest ones. Memory and attended length stay constant for unbounded text.
//
// After each token the cache is truncated to its first `sinks` and last `recent` tokens, so a token attends to at most
// sinks + recent + 1 keys including its own. Positions, distances and the visible count are those within the cache.
//
// With `heavy` it keeps instead, of every key-value head, the tokens to which queries have given the most weight so
// far, beside the last ones (as H2O, Zhang et al. 2023, arXiv 2306.14048).
struct StreamingCache {
  int64_t sinks = 4, recent = 508, heavy = 0;
  int64_t size() const { return sinks + recent + heavy; }
  bool operator==(const StreamingCache&) const = default;
  std::string name() const;  // "streaming:4+508", "heaviest:64+64"
  // Parses the format of name(). Error naming `option`.
  static StreamingCache parse(const std::string& text, const std::string& option);
};

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
