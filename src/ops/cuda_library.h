// What liblazy_ops_cuda.so (load_cuda.h) gives to code that is compiled without CUDA. Set when it is loaded.
#pragma once
#include <string>

#include "lazy/kernel_table.h"
#include "ops/attention_arguments.h"
#include "ops/rope.h"

namespace lazy::ops {

struct StepKernels;

struct CudaLibrary {
  const StepKernels* step_kernels = nullptr;  // step_kernels.h

  // The name of the kernel that serves a problem on the current GPU: "plain", "portable", "hopper".
  std::string (*attention_kernel)(const kernels::Problem& problem) = nullptr;

  // Returns whether the current stream of t's GPU records a CUDA graph, and if so queues the check of
  // cuda/cumulative_lengths.h. t: contiguous, int32 or int64.
  bool (*checks_lengths_in_graph)(const at::Tensor& t, int64_t tokens, bool of_keys) = nullptr;

  // The backward pass of attention whose queries and keys were rotated; after check_backward, q and k rotated. g.q and
  // g.k: gradients before the rotation, with a stride of tokens; as rope_into wants them.
  void (*rotated_backward)(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out,
                           const at::Tensor& lse, const OptionalTensor& alive_sum, const RopeArguments& rope,
                           AttentionGradients& g) = nullptr;

  // The backward pass of keys that are a part of their rows' softmax; after check_backward, for the normalizer
  // softmax_sink, whose rows have mass beside the keys; the sink is not read. out and lse are those of the whole
  // softmax. Returns false, and has computed nothing, where the kernels would take what the rows have from the keys
  // that they see.
  bool (*softmax_part_backward)(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out,
                                const at::Tensor& lse, AttentionGradients& g) = nullptr;
};

// All null until the library is loaded.
CudaLibrary& cuda_library();

}  // namespace lazy::ops
