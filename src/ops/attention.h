// The operator lazy::attention for C++ callers. Python calls the same operator through
// torch.ops.lazy.attention after torch.ops.load_library("liblazy_ops.so").
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "ops/rope.h"
#include "ops/tensor.h"

namespace lazy::ops {

// Maximum of head_dim and value_dim at which the forward pass of elastic attention on a GPU, in a 16-bit dtype, saves
// alive_sum for the backward pass. alive_sum is, per query, the sum of the values of all keys with nonzero weight
// (lazy/attention.h). It is saved only if gradients are required and need not be deterministic.
constexpr int64_t kMaxAliveSumHead = 128;

struct AttentionOptions {
  std::string normalizer = "elastic";
  std::string offset = "per_visible";
  std::optional<double> sigmoid_bias;
  std::optional<double> scale;    // default head_dim^-0.5
  std::optional<double> softcap;  // c: scores become c tanh(s / c) before bias, ALiBi and mask; 0 or unset: no softcap
  bool causal = true;             // bottom-right aligned: the last query sees the last key
  int64_t window = -1;            // w: each query sees its own key and the w - 1 keys before it; -1: no window
  bool return_stats = false;
  bool return_score_stats = false;  // also returns statistics of the scores; implies return_stats
  // Returns the value of the operator's integer argument return_stats.
  int64_t stats_level() const { return return_score_stats ? 2 : return_stats ? 1 : 0; }
  bool deterministic = false;
  at::Tensor sink;  // (heads) fp32: sink logits, for the normalizers "softmax_sink" and "elastic_sink"
  at::Tensor alibi_slopes;
  at::Tensor cu_seqlens_q,
      cu_seqlens_k;  // only for packed documents: q is then (tokens, heads, head_dim), and no tensor has a batch axis
};

// Computes attention. q is (batch, length, heads, head_dim); k and v are (batch, key_length, kv_heads, head_dim).
// distance_bias is (heads, W) fp32; tau, sink and alibi_slopes are (heads) fp32. An undefined tensor means that the
// argument is not given.
//
// Returns out with the shape of q (last dimension value_dim), lse fp32 (batch, heads, length) and stats fp32 (n, batch,
// heads, length). n is 3, or 5 with return_score_stats; stats is empty if no statistics were requested.
//
// Differentiable in q, k, v, distance_bias, tau, sink and alibi_slopes. float64 tensors use the reference
// implementation, which is slow and is meant for gradient checks; distance_bias, tau, sink and alibi_slopes must then
// be float64 too. Error messages have the form "lazy::attention: expected ..., received ...".
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                         const at::Tensor& distance_bias, const at::Tensor& tau,
                                                         const AttentionOptions& options);

// Computes attention(rope(q), rope(k), v), with token positions that start at 0. If gradients are required and there
// are as many keys as queries, the backward pass writes the gradients of q, k and v to one tensor, concatenated along
// the head axis, and returns slices of it. The backward pass of a fused QKV projection can then use this tensor without
// a copy.
std::tuple<at::Tensor, at::Tensor, at::Tensor> rotated_attention(const at::Tensor& q, const at::Tensor& k,
                                                                 const at::Tensor& v, const at::Tensor& distance_bias,
                                                                 const at::Tensor& tau, double rope_base,
                                                                 const RopeOptions& rope,
                                                                 const AttentionOptions& options);

}  // namespace lazy::ops
