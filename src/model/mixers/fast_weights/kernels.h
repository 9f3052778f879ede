// The forward and backward pass by kernels, where there are some.
#pragma once
#include "model/mixers/fast_weights/internal.h"
#include "ops/fast_weights.h"

namespace lazy::fast_weights {

// Null: batched products compute. Only with rounded products: the kernels' are TF32.
const ops::FastWeightsKernels* kernels_for(const FastWeights& in, const TensorSpec& spec);

// Of a chunk and sequence: see FastWeightsKernels::kept_bytes.
int64_t bytes_kept(const ops::FastWeightsKernels& kernels, const FastWeights& in, const TensorSpec& spec);
// As forward() and backward(). The activations' memory and b of the first chunk are there already.
FastWeightsResult run_forward(const ops::FastWeightsKernels& kernels, const FastWeights& in, const TensorSpec& spec,
                              SavedActivations& activations, bool for_backward);
FastWeights run_backward(const ops::FastWeightsKernels& kernels, const FastWeights& in, const TensorSpec& spec,
                         const SavedActivations& activations, const FastWeightsResult& d);

}  // namespace lazy::fast_weights
