// The kernels of fast weights for tensors of one kind of device. A library that has some announces them when it is
// loaded; where there are none, model/mixers/fast_weights computes with batched products.
#pragma once
#include <c10/core/DeviceType.h>

#include "ops/fast_weights_problem.h"
#include "ops/ttt_problem.h"

namespace lazy::ops {

struct FastWeightsKernels {
  // Whether there are kernels for this shape that the current device runs.
  bool (*serves)(int64_t T, int64_t H, bool momentum);
  // Bytes of a chunk and sequence that the kernels keep for the backward pass in a form of their own, so that the
  // problem has `kept` and no W, S of chunks, u, t, x, g and z but the last layer's g and z; 0: has all but `kept`. By
  // T, H, momentum and tanh.
  int64_t (*kept_bytes)(const FastWeightsProblem& shape);
  // On the current stream.
  void (*forward)(const FastWeightsProblem& problem);
  void (*backward)(const FastWeightsProblem& problem);
  // Titans' passes over tokens.
  void (*factors)(const MemoryFactors& factors);
  void (*factors_backward)(const MemoryFactors& factors);
  void (*tokens)(const MemoryTokens& tokens);
  void (*tokens_backward)(const MemoryTokens& tokens);
  void (*outputs)(const MemoryOutputs& outputs);
  void (*outputs_backward)(const MemoryOutputs& outputs);
  // The same of TTT: one layer, or two of this width.
  bool (*serves_ttt)(int64_t H);
  void (*ttt_forward)(const TttProblem& problem);
  void (*ttt_backward)(const TttProblem& problem);
  bool (*serves_ttt_norm)(int64_t dim);
  void (*ttt_norm_forward)(const TttNorm& norm);
  void (*ttt_norm_backward)(const TttNorm& norm);
};

void set_fast_weights_kernels(c10::DeviceType device, const FastWeightsKernels& kernels);

// Null: none for the device and shape, or LAZY_KERNEL forbids them.
const FastWeightsKernels* fast_weights_kernels(c10::DeviceType device, int64_t T, int64_t H, bool momentum);
const FastWeightsKernels* ttt_kernels(c10::DeviceType device, int64_t H);
const FastWeightsKernels* ttt_norm_kernels(c10::DeviceType device, int64_t dim);

}  // namespace lazy::ops
