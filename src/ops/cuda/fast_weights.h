// Fast weights on tensor cores: a block goes over the chunks of one sequence and head. Products of TF32 with fp32 sums;
// everything else is fp32. Everything is queued on the stream; nothing is allocated and nothing waits. Results are
// bit-identical from run to run. std::runtime_error when a launch is refused.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/fast_weights_problem.h"
#include "ops/ttt_problem.h"

namespace lazy::ops::cuda {

// Whether there are kernels for this shape that the current GPU has shared memory for.
bool serves_fast_weights(int64_t T, int64_t H, bool momentum);

// See ops/fast_weights.h.
int64_t fast_weights_kept_bytes(const FastWeightsProblem& shape);

void fast_weights_forward(const FastWeightsProblem& problem, cudaStream_t stream);
void fast_weights_backward(const FastWeightsProblem& problem, cudaStream_t stream);

void memory_factors(const MemoryFactors& factors, cudaStream_t stream);
void memory_factors_backward(const MemoryFactors& factors, cudaStream_t stream);
void memory_tokens(const MemoryTokens& tokens, cudaStream_t stream);
void memory_tokens_backward(const MemoryTokens& tokens, cudaStream_t stream);
void memory_outputs(const MemoryOutputs& outputs, cudaStream_t stream);
void memory_outputs_backward(const MemoryOutputs& outputs, cudaStream_t stream);

// The same of TTT: one layer, or two of this width.
bool serves_ttt(int64_t H);
void ttt_forward(const TttProblem& problem, cudaStream_t stream);
void ttt_backward(const TttProblem& problem, cudaStream_t stream);

bool serves_ttt_norm(int64_t dim);
void ttt_norm_forward(const TttNorm& norm, cudaStream_t stream);
void ttt_norm_backward(const TttNorm& norm, cudaStream_t stream);

}  // namespace lazy::ops::cuda
