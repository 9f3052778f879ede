// The C++ signatures of the two registered functions, in the schema's order, and the shapes of what they return.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>

#include "ops/attention_arguments.h"

namespace lazy::ops {

using AttentionOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using BackwardOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// One list, so that the registered kernels (CPU, Meta, autograd) cannot differ.
#define LAZY_ATTENTION_INPUTS                                                                         \
  const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const OptionalTensor &distance_bias, \
      const OptionalTensor &tau, const OptionalTensor &sink, const OptionalTensor &alibi_slopes,      \
      std::string_view normalizer, std::string_view offset, std::optional<double> sigmoid_bias,       \
      std::optional<double> scale, bool causal, int64_t window, const OptionalTensor &cu_seqlens_q,   \
      const OptionalTensor &cu_seqlens_k
#define LAZY_ATTENTION_PARAMETERS LAZY_ATTENTION_INPUTS, bool return_stats, bool deterministic
#define LAZY_ATTENTION_BACKWARD_PARAMETERS                                                                          \
  const at::Tensor &d_out, const at::Tensor &out, const at::Tensor &lse, LAZY_ATTENTION_INPUTS, bool deterministic, \
      std::array<bool, 7> output_mask
#define LAZY_ATTENTION_PACK                                                                                   \
  {                                                                                                           \
    q, k, v, distance_bias, tau, sink, alibi_slopes, normalizer, offset, sigmoid_bias, scale, causal, window, \
        cu_seqlens_q, cu_seqlens_k, deterministic                                                             \
  }

// Uninitialized, of the shapes that DESIGN section 4 gives; stats and sigmoid's lse are empty when not wanted.
AttentionOutputs empty_outputs(const AttentionArguments& a, bool return_stats);

// What a backward pass is handed beside the forward's arguments: d_out and out like the forward's out, its lse. After
// check_attention. Throws "lazy::attention_backward: expected ..., received ...".
void check_backward(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out, const at::Tensor& lse);

struct AttentionGradients {
  at::Tensor q, k, v, distance_bias, tau, sink, alibi_slopes;
};
// Tensors that the mask does not ask for have no elements.
AttentionGradients empty_gradients(const AttentionArguments& a, const std::array<bool, 7>& mask);

}  // namespace lazy::ops
