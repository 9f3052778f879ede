// The options and the results of a forward pass, and the layout of packed sequences. The options are passed to every
// layer and mixer.
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

// Token sequences concatenated without padding, for one forward pass. A sequence may continue an earlier one: then it
// contains only the new tokens, and these attend to the keys of both the earlier and the new tokens.
struct PackedSequences {
  at::Tensor ids;        // (tokens) int64
  at::Tensor positions;  // (tokens) int64: positions within each sequence, starting at 0, for RoPE
  // (sequences + 1) int32: cumulative lengths of the sequences' queries and keys.
  at::Tensor cu_seqlens_q, cu_seqlens_k;
  // (keys) int64: for each key, the index in `ids` of its token. If undefined, the keys of each sequence are its own
  // tokens.
  at::Tensor keys;
  int64_t longest = 0;  // length of the longest sequence, including the prefix that it continues
  // Index tensors that mixers derive from this layout on first use (mixers/packed_layouts.h). Copies of this struct
  // share these tensors, so the layout of a copy must not be modified.
  mutable std::shared_ptr<PackedLayouts> layouts = {};
};

struct ForwardOptions {
  KVCache* cache = nullptr;    // the pass reads the cache and appends to it; positions start at cache->length
  bool deterministic = false;  // bitwise reproducible gradients of attention
  bool return_stats = false;   // per-layer attention statistics in ForwardResult::stats
  // Called with (layer, q, k) after RoPE; q and k are (batch, length, heads, head_dim).
  std::function<void(int64_t, const at::Tensor&, const at::Tensor&)> on_attention_input;
  // Hooks that read or replace named activations; null: none. The object must outlive the autograd graph.
  const ActivationHooks* activation_hooks = nullptr;
  // Layout of concatenated sequences; null: none. The ids must have shape (1, tokens), and `cache` must be null.
  const PackedSequences* packed = nullptr;
  const PagedKeys* paged = nullptr;  // key-value pages instead of a cache (model/paged_keys.h); inference only
  // int64 indices of the tokens whose hidden states are returned, in this order; only for concatenated sequences.
  // Undefined: all tokens.
  at::Tensor rows;
};

struct ForwardResult {
  // (batch, length, hidden_size) after the final norm; (1, rows, hidden_size) with ForwardOptions::rows.
  at::Tensor hidden;
  // One tensor of attention statistics per layer, (3, batch, heads, length) fp32. lazy::attention documents the three
  // values. Undefined for layers without attention.
  std::vector<at::Tensor> stats;
};

}  // namespace lazy
