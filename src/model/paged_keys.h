// Keys and values of many sequences in pages of one pool, for the generation engine.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/paging.h"

namespace lazy {

// One pass over new tokens of several sequences: ids (batch, length), sequence b continues its own text. The pass
// writes the keys and values of the new tokens into the pool and attends to each sequence's pages. Positions and
// lengths differ by sequence; `length` is the same for all, and at most ops::kFewRows unless batch is 1. With `sources`
// sequences of any lengths lie end to end instead: ids (1, tokens), without block_table and lengths.
struct PagedKeys {
  // By layer, (pages, page_size, kv_heads, head_dim) in the compute dtype. Changed in place.
  std::vector<at::Tensor> keys, values;
  // int64, on the model's device. Place j of sequence b is place j % page_size of page block_table[b][j / page_size].
  at::Tensor block_table;  // (batch, pages of a sequence at most)
  at::Tensor lengths;      // (batch): tokens of each sequence, the new ones included
  at::Tensor positions;    // (batch, length) of the new tokens, from 0
  at::Tensor slots;        // (batch * length): page * page_size + place, of the new tokens
  int64_t longest = 0;     // of `lengths`, or an upper bound where a step is recorded
  int64_t max_length = 0;  // maximum tokens of a sequence, for why_not_paged
  // Undefined, or of sequences that lie end to end: (sequences + 1) int32 offsets of each one's new tokens and of all
  // its tokens, and where the keys of the latter come from (int64, ops/rope_to_pages.h). Only new tokens whose keys
  // are among these go to pages.
  at::Tensor cu_seqlens_q, cu_seqlens_k, sources;
};

// Allocates uninitialized pools of `pages` pages. Error if why_not_paged is not empty.
PagedKeys make_paged_keys(const ModelConfig& config, int64_t pages, int64_t page_size, at::ScalarType dtype,
                          at::Device device, int64_t max_length = std::numeric_limits<int64_t>::max());
}  // namespace lazy
