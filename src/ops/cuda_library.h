// Functions that liblazy_ops_cuda.so (load_cuda.h) provides to code that is compiled without CUDA. The library sets the
// pointers when it is loaded.
#pragma once
#include <string>

#include "lazy/kernel_table.h"
#include "ops/attention_arguments.h"
#include "ops/rope.h"

namespace lazy::ops {

struct StepKernels;

struct CudaLibrary {
  const StepKernels* step_kernels = nullptr;  // see step_kernels.h

  // Returns the name of the kernel that computes `problem` on the current GPU: "plain", "portable" or "hopper".
  std::string (*attention_kernel)(const kernels::Problem& problem) = nullptr;

  // Returns whether the current stream of t's GPU is capturing a CUDA graph. If so, adds a kernel to the graph that
  // checks the cumulative lengths t (cuda/cumulative_lengths.h). t must be contiguous, int32 or int64, and end at
  // `tokens`. of_keys: t is cu_seqlens_k instead of cu_seqlens_q.
  bool (*checks_lengths_in_graph)(const at::Tensor& t, int64_t tokens, bool of_keys) = nullptr;

  // The backward pass of attention with rotated queries and keys. Requires check_backward; a.q and a.k are rotated.
  // Writes the gradients with respect to q and k before the rotation to g.q and g.k. As rope_into requires, the tokens
  // of g.q must have one common stride, and so must the tokens of g.k.
  void (*rotated_backward)(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out,
                           const at::Tensor& lse, const OptionalTensor& alive_sum, const RopeArguments& rope,
                           AttentionGradients& g) = nullptr;

  // The backward pass of a softmax whose keys are processed in several parts: computes the gradients for one part of
  // the keys. out and lse are the results of the whole softmax. Requires check_backward and the normalizer
  // softmax_sink, because with this normalizer the weights of the given keys need not add up to 1; the values of the
  // sink are not read. Returns false without computing anything if the kernels would compute the per-row sums from the
  // given keys instead of from out and lse.
  bool (*softmax_part_backward)(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out,
                                const at::Tensor& lse, AttentionGradients& g) = nullptr;
};

// All pointers are null until the library is loaded.
CudaLibrary& cuda_library();

}  // namespace lazy::ops
