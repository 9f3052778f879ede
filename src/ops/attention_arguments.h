// The arguments of lazy::attention and lazy::decode in the form in which the PyTorch dispatcher passes them, the
// signatures of the registered functions, the argument checks, and the conversion to the Problem struct of the kernels.
#pragma once
#include <array>
#include <optional>
#include <string_view>
#include <tuple>

#include "lazy/attention.h"
#include "ops/optional_tensor.h"

namespace lazy::ops {

// Arguments in the order of the operator schema. The members are references and are valid only during the call.
struct AttentionArguments {
  const at::Tensor &q, &k, &v;
  const OptionalTensor &distance_bias, &tau, &sink, &alibi_slopes;
  std::string_view normalizer, offset;
  std::optional<double> sigmoid_bias, scale, softcap;
  bool causal;
  int64_t window;
  const OptionalTensor &cu_seqlens_q, &cu_seqlens_k;
  bool deterministic;
  const char* operation = "attention";  // name of the operator in error messages
  bool paged = false;                   // whether k and v are page pools, whose first axis is the page, not the batch
};

// Checks ranks, dtypes, devices and sizes. It does not read tensor data and therefore also runs for Meta tensors.
// Throws "lazy::OPERATION: expected ..., received ...".
void check_attention(const AttentionArguments& a);

// Whether the gradients must be bit-identical between runs: `argument` is true, or torch.use_deterministic_algorithms
// is enabled.
bool deterministic_wanted(bool argument);

// Returns a Problem in which the fields that depend on batch, heads, lengths and documents are not set, because
// torch.compile may pass symbolic sizes. Requires check_attention.
kernels::Problem problem_of_any_length(const AttentionArguments& a);

// Returns the Problem for the kernels. Requires check_attention and tensors with data. The function also checks the
// contents of cu_seqlens, which may be on the CPU or on the device of q. For a GPU tensor, this check synchronizes with
// the GPU; it is skipped if the same tensor was checked before and was not modified since. `cu_q` and `cu_k` receive
// the int32 copies on the device of q to which the Problem points; they must outlive the kernel.
kernels::Problem attention_problem(const AttentionArguments& a, at::Tensor& cu_q, at::Tensor& cu_k);

kernels::ConstView const_view(const at::Tensor& t);  // t: (batch, token, head, dim) or (token, head, dim)
kernels::View view(const at::Tensor& t);

// Returns the dtype of lse, stats and the per-head parameters for q of dtype `type`: fp64 for fp64, otherwise fp32.
at::ScalarType accumulate_type(at::ScalarType type);

using AttentionOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using ForwardOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;  // out, lse, stats, alive_sum
using BackwardOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// The C++ signatures of the registered functions, in schema order. CPU, CUDA, Meta and autograd share these macros.
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

// Whether the forward pass of a training step saves alive_sum (see empty_alive_sum) for the backward pass. `problem`
// may come from problem_of_any_length.
bool keeps_alive_sum(const kernels::Problem& problem, bool deterministic);

// Allocates alive_sum without initializing it: per query, the sum of the values of all keys with nonzero weight
// (lazy/attention.h). It has the shape of out if the forward pass of a training step on the current GPU saves it for
// the backward pass, otherwise it has no elements. The decision does not depend on the lengths, so that torch.compile
// does not specialize on them; for short inputs, alive_sum is saved but not used. The decision does not depend on the
// device of the tensors either, because the Meta kernel of torch.compile cannot see this device.
at::Tensor empty_alive_sum(const AttentionArguments& a, const at::Tensor& out);

AttentionOutputs attention_cpu(LAZY_ATTENTION_PARAMETERS);
BackwardOutputs attention_backward_cpu(LAZY_ATTENTION_BACKWARD_PARAMETERS);

// Allocates the outputs without initializing them. The first dimension of stats is kStatsParts[return_stats]: 0, 3
// (statistics of the weights) or 5 (also 2 statistics of the scores). lse is empty for a normalizer without a
// log-sum-exp. Throws for other values of return_stats.
constexpr int64_t kStatsParts[] = {0, 3, 5};
AttentionOutputs empty_outputs(const AttentionArguments& a, int64_t return_stats);

// Checks the inputs of the backward pass that are not arguments of the forward pass: d_out, out and alive_sum (if it
// has elements) must match the output of the forward pass, and lse must match its lse. Requires check_attention. Throws
// "lazy::attention_backward: expected ..., received ...".
void check_backward(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out, const at::Tensor& lse,
                    const OptionalTensor& alive_sum);

struct AttentionGradients {
  at::Tensor q, k, v, distance_bias, tau, sink, alibi_slopes;
};
// Allocates the gradients without initializing them. Gradients that `mask` excludes have no elements.
AttentionGradients empty_gradients(const AttentionArguments& a, const std::array<bool, 7>& mask);

}  // namespace lazy::ops
