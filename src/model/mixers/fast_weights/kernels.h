// The forward and backward pass of fast weights with fused kernels.
#pragma once
#include "model/mixers/fast_weights/internal.h"
#include "ops/fast_weights.h"

namespace lazy::fast_weights {

// Returns the kernels for this shape, or null if batched matrix products must be used. The result is null without
// spec.rounded, because the kernels compute in TF32.
const ops::FastWeightsKernels* kernels_for(const FastWeights& in, const TensorSpec& spec);

// Returns the number of bytes that the kernels save for the backward pass per chunk and per sequence and head; see
// FastWeightsKernels::kept_bytes.
int64_t bytes_kept(const ops::FastWeightsKernels& kernels, const FastWeights& in, const TensorSpec& spec);
// These functions return the same results as forward() and backward() in internal.h. The caller must first allocate the
// activations and copy the initial bias b into the entry of the first chunk.
FastWeightsResult run_forward(const ops::FastWeightsKernels& kernels, const FastWeights& in, const TensorSpec& spec,
                              SavedActivations& activations, bool for_backward);
FastWeights run_backward(const ops::FastWeightsKernels& kernels, const FastWeights& in, const TensorSpec& spec,
                         const SavedActivations& activations, const FastWeightsResult& d);

}  // namespace lazy::fast_weights
