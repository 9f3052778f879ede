// CUDA kernels for the fast weights of Titans and TTT. A library with kernels for a device type registers them here
// when it is loaded. Without registered kernels, model/mixers/fast_weights uses batched matrix products.
#pragma once
#include <c10/core/DeviceType.h>

#include "ops/fast_weights_problem.h"
#include "ops/ttt_problem.h"

namespace lazy::ops {

struct FastWeightsKernels {
  // Whether the kernels support this shape on the current device: T tokens per chunk, hidden width H (0: one layer).
  bool (*serves)(int64_t T, int64_t H, bool momentum);
  // Returns the size of FastWeightsProblem::kept in bytes per chunk and per sequence and head. In `kept`, the forward
  // kernels save data for the backward pass in a private format. If the size is not 0, the caller allocates `kept` and,
  // of the per-chunk tensors W, S, u, t, x, g and z, only g and z of the last layer. If the size is 0, the caller
  // allocates all of these tensors but not `kept`. The size depends on T, H, momentum and tanh.
  int64_t (*kept_bytes)(const FastWeightsProblem& shape);
  // The functions below launch kernels on the current stream.
  void (*forward)(const FastWeightsProblem& problem);
  void (*backward)(const FastWeightsProblem& problem);
  // These functions convert the inputs and the outputs of the Titans memory, for all tokens.
  void (*factors)(const MemoryFactors& factors);
  void (*factors_backward)(const MemoryFactors& factors);
  void (*tokens)(const MemoryTokens& tokens);
  void (*tokens_backward)(const MemoryTokens& tokens);
  void (*outputs)(const MemoryOutputs& outputs);
  void (*outputs_backward)(const MemoryOutputs& outputs);
  // The kernels of TTT, for models with one layer (H is 0) or with two layers of hidden width H.
  bool (*serves_ttt)(int64_t H);
  void (*ttt_forward)(const TttProblem& problem);
  void (*ttt_backward)(const TttProblem& problem);
  bool (*serves_ttt_norm)(int64_t dim);
  void (*ttt_norm_forward)(const TttNorm& norm);
  void (*ttt_norm_backward)(const TttNorm& norm);
};

void set_fast_weights_kernels(c10::DeviceType device, const FastWeightsKernels& kernels);

// These functions return null if no kernels support the device and the shape, or if LAZY_KERNEL disables the kernels.
const FastWeightsKernels* fast_weights_kernels(c10::DeviceType device, int64_t T, int64_t H, bool momentum);
const FastWeightsKernels* ttt_kernels(c10::DeviceType device, int64_t H);
const FastWeightsKernels* ttt_norm_kernels(c10::DeviceType device, int64_t dim);

}  // namespace lazy::ops
