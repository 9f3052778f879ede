// TTT with the fused kernels of ops/cuda/fast_weights.h.
#pragma once
#include "model/mixers/ttt_rule.h"
#include "ops/fast_weights.h"

namespace lazy {

// Returns the kernels for these inputs, or null if batched matrix products must be used. The result is null without
// in.rounded, because the kernels compute in TF32.
const ops::FastWeightsKernels* ttt_kernels(const TttInputs& in, const TttWeights& start);

// Returns the same results as ttt_chunks. The tokens must be whole mini-batches. The outputs have the dtype of q. The
// returned weights are empty if in.last_state is false.
std::pair<at::Tensor, TttWeights> run_ttt_kernels(const ops::FastWeightsKernels& kernels, const TttInputs& in,
                                                  const TttWeights& start);

// Returns the LayerNorm of the rows of x (..., dim), computed in fp32 and rounded to dtype `type`. Uses a fused kernel
// if the rows and the result are bf16.
at::Tensor ttt_post_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::ScalarType type);

}  // namespace lazy
