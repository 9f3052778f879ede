// Token sequences laid end to end without padding, for one pass of the model. A sequence may continue another one: it
// brings only its own tokens and attends to the keys of both.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

namespace lazy {

struct PackedLayouts;

struct PackedSequences {
  at::Tensor ids;        // (tokens) int64
  at::Tensor positions;  // (tokens) int64: places in the sequences, from 0, which RoPE turns by
  // (sequences + 1) int32: where the queries of each sequence begin, and its keys.
  at::Tensor cu_seqlens_q, cu_seqlens_k;
  // (keys) int64: the token whose key stands there. Undefined: every sequence has its own tokens' keys and no others.
  at::Tensor keys;
  int64_t longest = 0;  // tokens of the longest sequence, what it continues included
  // What mixers lay out of these, made by the first layer that asks (mixers/packed_layouts.h). A copy shares it: change
  // no copy.
  mutable std::shared_ptr<PackedLayouts> layouts = {};
};

}  // namespace lazy
