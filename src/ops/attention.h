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

// Elastic's 16-bit forward on a GPU keeps a second output for the backward at head sizes up to this, where gradients
// are wanted and need not be deterministic.
constexpr int64_t kMaxAliveSumHead = 128;

struct AttentionOptions {
  std::string normalizer = "elastic";
  std::string offset = "per_visible";
  std::optional<double> sigmoid_bias;
  std::optional<double> scale;    // default head_dim^-0.5
  std::optional<double> softcap;  // c: scores become c tanh(s / c) before bias, ALiBi and mask; 0 or none: they do not
  bool causal = true;             // bottom-right aligned: the last query sees the last key
  int64_t window = -1;            // the w latest keys, the query's own included; -1: no window
  bool return_stats = false;
  bool return_score_stats = false;  // with return_stats and beyond: statistics of the scores
  // The operators' argument return_stats.
  int64_t stats_level() const { return return_score_stats ? 2 : return_stats ? 1 : 0; }
  bool deterministic = false;
  at::Tensor sink;  // normalizer "softmax_sink"
  at::Tensor alibi_slopes;
  at::Tensor cu_seqlens_q,
      cu_seqlens_k;  // packed documents: q (tokens, heads, head_dim), batch axis dropped everywhere
};

// q (batch, length, heads, head_dim); k, v (batch, key_length, kv_heads, head_dim).
// distance_bias (heads, W) fp32, tau / sink / alibi_slopes (heads) fp32. Undefined tensors mean "not given".
// Returns out like q; lse fp32 (batch, heads, length); stats fp32 (3 or, with those of scores, 5,
// batch, heads, length) or empty.
// Differentiable in q, k, v, distance_bias, tau, sink, alibi_slopes. float64 runs the reference (slow, for checking
// gradients); its parameters are float64 too. Errors: "lazy::attention: expected ..., received ...".
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                         const at::Tensor& distance_bias, const at::Tensor& tau,
                                                         const AttentionOptions& options);

// The same of lazy::rope(q) and lazy::rope(k), whose tokens stand from position 0 on. In training with as many keys as
// queries, the gradients of q, k and v are slices of one tensor, side by side as heads, as a product that made all
// three takes them at once.
std::tuple<at::Tensor, at::Tensor, at::Tensor> rotated_attention(const at::Tensor& q, const at::Tensor& k,
                                                                 const at::Tensor& v, const at::Tensor& distance_bias,
                                                                 const at::Tensor& tau, double rope_base,
                                                                 const RopeOptions& rope,
                                                                 const AttentionOptions& options);

}  // namespace lazy::ops
