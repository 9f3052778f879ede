// Keys and values of many sequences, stored in pages of one pool, for the generation engine.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/paging.h"

namespace lazy {

// One pass over new tokens of several sequences: ids (batch, length), where row b continues sequence b. The pass writes
// the keys and values of the new tokens into the pool and attends to each sequence's pages. Positions and lengths
// differ per sequence. `length` is the same for all sequences and at most ops::kMaxDecodeRows unless batch is 1. If
// `sources` is defined, sequences of different lengths are concatenated instead: ids (1, tokens), and block_table and
// lengths are undefined.
struct PagedKeys {
  // Per layer, (pages, page_size, kv_heads, head_dim) in the compute dtype. Modified in place.
  std::vector<at::Tensor> keys, values;
  // int64, on the model's device. Token j of sequence b is stored at offset j % page_size of page block_table[b][j /
  // page_size].
  at::Tensor block_table;  // (batch, maximum pages per sequence)
  at::Tensor lengths;      // (batch): tokens per sequence, including the new ones
  at::Tensor positions;    // (batch, length): positions of the new tokens, starting at 0
  at::Tensor slots;        // (batch * length): page * page_size + offset of each new token
  int64_t longest = 0;     // maximum of `lengths`; during graph capture, an upper bound of this maximum
  int64_t max_length = 0;  // maximum number of tokens per sequence; argument of paged_unsupported_reason()
  // Defined only for concatenated sequences. cu_seqlens_q and cu_seqlens_k, (sequences + 1) int32, are the cumulative
  // numbers of new tokens and of all tokens. `sources` (int64, ops/kv_cache_write.h) states where each key is read
  // from. Only new tokens that `sources` refers to are written to pages.
  at::Tensor cu_seqlens_q, cu_seqlens_k, sources;
};

// Allocates uninitialized pools of `pages` pages. Throws an Error if paged_unsupported_reason() returns a reason.
PagedKeys make_paged_keys(const ModelConfig& config, int64_t pages, int64_t page_size, at::ScalarType dtype,
                          at::Device device, int64_t max_length = std::numeric_limits<int64_t>::max());
}  // namespace lazy
