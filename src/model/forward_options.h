// Options of a forward pass, which are passed to every layer and mixer, its results, and the layout of packed
// sequences.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace lazy {

class ActivationHooks;
struct KVCache;
struct PackedLayouts;
struct PagedKeys;

// Token sequences packed end to end without padding, for one forward pass. A sequence may continue another one: it
// contains only its own tokens and attends to the keys of both.
struct PackedSequences {
  at::Tensor ids;        // (tokens) int64
  at::Tensor positions;  // (tokens) int64: positions within the sequences, from 0, for RoPE
  // (sequences + 1) int32: offsets of each sequence's queries and keys.
  at::Tensor cu_seqlens_q, cu_seqlens_k;
  // (keys) int64: the token that each key belongs to. Undefined: every sequence has exactly its own tokens' keys.
  at::Tensor keys;
  int64_t longest = 0;  // length of the longest sequence, including the prefix that it continues
  // Index tensors that mixers derive from the layout, built on first use (mixers/packed_layouts.h). Copies share them,
  // so a copy must not be changed.
  mutable std::shared_ptr<PackedLayouts> layouts = {};
};

struct ForwardOptions {
  KVCache* cache = nullptr;    // read and appended to; positions start at cache->length
  bool deterministic = false;  // deterministic gradients of attention
  bool return_stats = false;   // per-layer attention statistics in ForwardResult::stats
  // Called with (layer, q, k) after RoPE; q and k are (batch, length, heads, head_dim).
  std::function<void(int64_t, const at::Tensor&, const at::Tensor&)> on_attention_input;
  const ActivationHooks* activation_hooks = nullptr;  // reads or replaces named activations; must outlive the graph
  const PackedSequences* packed = nullptr;            // ids must be (1, tokens); incompatible with a cache
  const PagedKeys* paged = nullptr;                   // instead of a cache: see model/paged_keys.h; inference only
  // int64: of a pass over sequences end to end, the tokens whose hidden states are returned, in this order; undefined:
  // all
  at::Tensor rows;
};

struct ForwardResult {
  at::Tensor hidden;  // (batch, length, hidden_size) after the final norm; (1, rows, hidden_size) of some
  std::vector<at::Tensor>
      stats;  // per layer, (3, batch, heads, length) fp32, see lazy::attention; undefined for other mixers
};

}  // namespace lazy
