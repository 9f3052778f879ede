// Fast weights on tensor cores. Each block or cluster of blocks iterates over the chunks of one sequence and head.
// Matrix products use TF32 inputs, or fp16 inputs with a scale per matrix, and add in fp32. All other arithmetic is
// fp32. The functions only launch work on the stream; they do not allocate memory or synchronize. Results are
// bit-identical between runs. A failed launch throws std::runtime_error.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/fast_weights_problem.h"
#include "ops/ttt_problem.h"

namespace lazy::ops::cuda {

// Whether kernels for this shape exist and the current GPU has enough shared memory for them.
bool serves_fast_weights(int64_t T, int64_t H, bool momentum);

// Number of bytes per chunk, sequence and head that the kernels save for the backward pass; see kept_bytes in
// ops/fast_weights.h.
int64_t fast_weights_kept_bytes(const FastWeightsProblem& shape);

void fast_weights_forward(const FastWeightsProblem& problem, cudaStream_t stream);
void fast_weights_backward(const FastWeightsProblem& problem, cudaStream_t stream);

void memory_factors(const MemoryFactors& factors, cudaStream_t stream);
void memory_factors_backward(const MemoryFactors& factors, cudaStream_t stream);
void memory_tokens(const MemoryTokens& tokens, cudaStream_t stream);
void memory_tokens_backward(const MemoryTokens& tokens, cudaStream_t stream);
void memory_outputs(const MemoryOutputs& outputs, cudaStream_t stream);
void memory_outputs_backward(const MemoryOutputs& outputs, cudaStream_t stream);

// Whether the kernels support TTT with one layer (H is 0) or with two layers of hidden width H.
bool serves_ttt(int64_t H);
void ttt_forward(const TttProblem& problem, cudaStream_t stream);
void ttt_backward(const TttProblem& problem, cudaStream_t stream);

bool serves_ttt_norm(int64_t dim);
void ttt_norm_forward(const TttNorm& norm, cudaStream_t stream);
void ttt_norm_backward(const TttNorm& norm, cudaStream_t stream);

}  // namespace lazy::ops::cuda
