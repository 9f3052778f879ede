// TTT by the kernels of ops/cuda/fast_weights.h, where there are some.
#pragma once
#include "model/mixers/ttt_rule.h"
#include "ops/fast_weights.h"

namespace lazy {

// Null: batched products compute. Only with rounded products: the kernels' are TF32.
const ops::FastWeightsKernels* ttt_kernels(const TttInputs& in, const TttWeights& start);

// As ttt_chunks, for whole mini-batches from the first token of one on; the outputs are of q's type. The weights are
// empty without in.last_state.
std::pair<at::Tensor, TttWeights> run_ttt_kernels(const ops::FastWeightsKernels& kernels, const TttInputs& in,
                                                  const TttWeights& start);

// LayerNorm of rows (..., dim) in fp32, rounded to `type`; by kernels where rows and result are bf16.
at::Tensor ttt_post_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::ScalarType type);

}  // namespace lazy
