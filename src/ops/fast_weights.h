// The kernels of fast weights for tensors of one kind of device. A library that has some announces them when it is
// loaded; where there are none, model/mixers/fast_weights computes with batched products.
#pragma once
#include <c10/core/DeviceType.h>

#include "ops/fast_weights_problem.h"

namespace lazy::ops {

struct FastWeightsKernels {
  // Whether there are kernels for this shape that the current device runs.
  bool (*serves)(int64_t T, int64_t H, bool momentum);
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
};

void set_fast_weights_kernels(c10::DeviceType device, const FastWeightsKernels& kernels);

// Null: none for the device and shape, or LAZY_KERNEL forbids them.
const FastWeightsKernels* fast_weights_kernels(c10::DeviceType device, int64_t T, int64_t H, bool momentum);

}  // namespace lazy::ops
