// All layers of a decode step in one persistent kernel on a GPU.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "ops/attention_weights.h"
#include "ops/kv_cache_write.h"

namespace lazy::ops {

// One layer: x += attention(rms_norm(x) W_qkv^T) W_output^T, then x += swiglu(rms_norm(x) W_gate_up^T) W_down^T.
struct FusedDecodeLayer {
  at::Tensor qkv, output, gate_up, down;  // weights in the dtype of x
  at::Tensor norm, mlp_norm;              // (hidden) fp32: weights of the RMSNorms
  int64_t heads = 0;
  AttentionTerms attention;
  PagePlaces pages;  // where the layer writes keys and values; pages.rope.positions is (tokens, 1)
};

// Synchronization flags of the kernel. Their values persist between the decode steps of a model, because the flags
// count up and are never reset. Only one step may run at a time. The object has one buffer per requested number of
// flags.
class SyncFlags {
 public:
  // Returns the buffer of `count` int64 flags, which are 0 initially.
  at::Tensor of(int64_t count, at::Device device);

 private:
  std::map<int64_t, at::Tensor> by_count_;
};

struct FusedDecodeLayers {
  at::Tensor x;  // (tokens, hidden): the residual stream, one token per sequence
  std::vector<FusedDecodeLayer> layers;
  double eps = 0;
  at::Tensor lengths, block_table;  // int64: cache_lengths and block_table of ops::decode
  SyncFlags* words = nullptr;
};
// Returns x after all layers. The result is bitwise equal to the result of separate calls of skinny_gemm,
// skinny_gemm_kv_cache_write and decode (with invariant = true). Returns nullopt without any side effect if the kernel
// does not support the input; the caller then uses these functions.
std::optional<at::Tensor> fused_decode_layers(const FusedDecodeLayers& in);

}  // namespace lazy::ops
