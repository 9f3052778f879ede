// The arguments that lazy::attention and lazy::decode share, as the dispatcher passes them, and their translation into
// a kernel's Problem.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>

#include "lazy/attention.h"
#include "ops/optional_tensor.h"

namespace lazy::ops {

// In the schema's order. References: alive as long as the call.
struct AttentionArguments {
  const at::Tensor &q, &k, &v;
  const OptionalTensor &distance_bias, &tau, &sink, &alibi_slopes;
  std::string_view normalizer, offset;
  std::optional<double> sigmoid_bias, scale;
  bool causal;
  int64_t window;
  const OptionalTensor &cu_seqlens_q, &cu_seqlens_k;
  bool deterministic;
  const char* operation = "attention";  // for messages
  bool paged = false;                   // k and v are pages: their first axis is not the batch
};

// Ranks, dtypes, devices and sizes, without looking at data: serves Meta too. Throws
// "lazy::OPERATION: expected ..., received ...".
void check_attention(const AttentionArguments& a);

// After check_attention, for tensors with data; also checks the contents of cu_seqlens, which may be on the CPU or
// where q is (there the check waits for the GPU, once for a tensor that nobody changes). `cu_q` and `cu_k` hold what
// the Problem points to, int32 on q's device.
kernels::Problem attention_problem(const AttentionArguments& a, at::Tensor& cu_q, at::Tensor& cu_k);

kernels::ConstView const_view(const at::Tensor& t);  // (batch, token, head, dim) or (token, head, dim)
kernels::View view(const at::Tensor& t);

// The type of lse, stats and of the parameters: fp32, and fp64 when q is.
at::ScalarType accumulate_type(at::ScalarType type);

}  // namespace lazy::ops
