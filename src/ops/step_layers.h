// The layers of a decoding step in one kernel, on a GPU.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ops/attention_weights.h"
#include "ops/rope.h"

namespace lazy::ops {

// x += attention(rms_norm(x) W_qkv^T) W_output^T, then x += swiglu(rms_norm(x) W_gate_up^T) W_down^T.
struct StepLayer {
  at::Tensor qkv, output, gate_up, down;  // in x's type
  at::Tensor norm, mlp_norm;              // (hidden) fp32
  int64_t heads = 0, kv_heads = 0;
  AttentionTerms attention;
  double rope_base = 0;  // 0: no rotation
  RopeOptions rope;
  at::Tensor keys, values;  // (pages, page_size, kv_heads, head_dim), changed
};
struct StepLayers {
  at::Tensor x;  // (tokens, hidden): one of each sequence
  std::vector<StepLayer> layers;
  double eps = 0;
  at::Tensor lengths, block_table;  // as decode's, int64
  at::Tensor positions, slots;      // as rope_to_pages's, of (tokens) numbers
  int64_t longest = 0;              // likewise
  at::Tensor counter;               // (1) int32, zero at first: of all calls that may not run at the same time
};
// The terms whose sum the layers make of x, with the bits of few_rows_product, rope_to_pages and decode (invariant) one
// by one. Nothing where they serve alone: then nothing was changed.
std::optional<std::pair<at::Tensor, at::Tensor>> step_layers(const StepLayers& in);

}  // namespace lazy::ops
