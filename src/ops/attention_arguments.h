// The arguments of lazy::attention and lazy::decode as the dispatcher passes them, the signatures of the registered
// functions, their checks, and their translation into a kernel's Problem.
#pragma once
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
  std::optional<double> sigmoid_bias, scale, softcap;
  bool causal;
  int64_t window;
  const OptionalTensor &cu_seqlens_q, &cu_seqlens_k;
  bool deterministic;
  const char* operation = "attention";  // for messages
  bool paged = false;                   // k and v are pages: their first axis is not the batch
};

// Ranks, dtypes, devices and sizes, without reading data, so it serves Meta too. Throws
// "lazy::OPERATION: expected ..., received ...".
void check_attention(const AttentionArguments& a);

// Bit-identical gradients: asked for by the argument, or by torch.use_deterministic_algorithms.
bool deterministic_wanted(bool argument);

// A Problem without what depends on batch, heads, lengths and documents, which may be symbolic. After check_attention.
kernels::Problem problem_of_any_length(const AttentionArguments& a);

// The kernels' Problem. After check_attention, for tensors with data. Also checks the contents of cu_seqlens, which may
// be on the CPU or on q's device (then the check synchronizes with the GPU, once for a tensor that is not modified).
// `cu_q` and `cu_k` hold what the Problem points to, int32 on q's device.
kernels::Problem attention_problem(const AttentionArguments& a, at::Tensor& cu_q, at::Tensor& cu_k);

kernels::ConstView const_view(const at::Tensor& t);  // (batch, token, head, dim) or (token, head, dim)
kernels::View view(const at::Tensor& t);

// The type of lse, stats and of the parameters: fp32, and fp64 when q is.
at::ScalarType accumulate_type(at::ScalarType type);

using AttentionOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using ForwardOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;  // the same and alive_sum
using BackwardOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// The C++ signatures of the registered functions, in the schema's order. One list for CPU, CUDA, Meta and autograd.
#define LAZY_ATTENTION_INPUTS                                                                         \
  const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const OptionalTensor &distance_bias, \
      const OptionalTensor &tau, const OptionalTensor &sink, const OptionalTensor &alibi_slopes,      \
      std::string_view normalizer, std::string_view offset, std::optional<double> sigmoid_bias,       \
      std::optional<double> scale, std::optional<double> softcap, bool causal, int64_t window,        \
      const OptionalTensor &cu_seqlens_q, const OptionalTensor &cu_seqlens_k
#define LAZY_ATTENTION_PARAMETERS LAZY_ATTENTION_INPUTS, int64_t return_stats, bool deterministic
#define LAZY_ATTENTION_BACKWARD_PARAMETERS                                                                          \
  const at::Tensor &d_out, const at::Tensor &out, const at::Tensor &lse, LAZY_ATTENTION_INPUTS, bool deterministic, \
      std::array<bool, 7> output_mask, const OptionalTensor &alive_sum
#define LAZY_ATTENTION_PACK                                                                                            \
  {                                                                                                                    \
    q, k, v, distance_bias, tau, sink, alibi_slopes, normalizer, offset, sigmoid_bias, scale, softcap, causal, window, \
        cu_seqlens_q, cu_seqlens_k, deterministic                                                                      \
  }

// Whether a training's forward keeps alive_sum for the backward. `problem` is of any length.
bool keeps_alive_sum(const kernels::Problem& problem, bool deterministic);

// Uninitialized alive_sum (lazy/attention.h): like out where a training's forward on the current GPU keeps it for the
// backward, else without elements. Lengths do not decide, so that torch.compile need not specialize on them: at short
// ones it is kept and not used. Nor does the tensors' device, which the Meta kernel of torch.compile cannot see.
at::Tensor empty_alive_sum(const AttentionArguments& a, const at::Tensor& out);

// The implementations for tensors on the CPU.
AttentionOutputs attention_cpu(LAZY_ATTENTION_PARAMETERS);
BackwardOutputs attention_backward_cpu(LAZY_ATTENTION_BACKWARD_PARAMETERS);

// Uninitialized outputs. stats is empty for return_stats 0, has 3 parts for 1 and 5 for 2 (kernels' stats, and
// score_stats behind them); lse is empty for a normalizer without a row statistic. Throws for another return_stats.
constexpr int64_t kStatsParts[] = {0, 3, 5};
AttentionOutputs empty_outputs(const AttentionArguments& a, int64_t return_stats);

// Checks the backward's inputs beside the forward's arguments: d_out, out and alive_sum (if it has elements) like the
// forward's out, its lse. After check_attention. Throws "lazy::attention_backward: expected ..., received ...".
void check_backward(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out, const at::Tensor& lse,
                    const OptionalTensor& alive_sum);

struct AttentionGradients {
  at::Tensor q, k, v, distance_bias, tau, sink, alibi_slopes;
};
// Uninitialized gradients; those that the mask leaves out have no elements.
AttentionGradients empty_gradients(const AttentionArguments& a, const std::array<bool, 7>& mask);

}  // namespace lazy::ops
