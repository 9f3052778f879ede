// Decoding in a step of a model on NVIDIA GPUs: lazy/attention_cuda.h's decode_cuda, but a sequence's bits depend
// neither on the batch size nor on the capacity. The work is divided alike for all of them, where decode_cuda divides
// it as it is fastest. Another kernel must be in front of it in the stream.
#pragma once
#include "lazy/attention_cuda.h"

namespace lazy::kernels {

size_t decode_step_workspace_cuda(const Problem& problem, const CacheSize& cache);
void decode_step_cuda(const Problem& problem, const Decode<float>& arguments, const CacheSize& cache,
                      const CudaCall& call);

}  // namespace lazy::kernels
