// Decode attention as part of a model's decode step on NVIDIA GPUs. The results of a sequence depend, bit for bit,
// neither on the batch size nor on the capacity of the cache, because the work is divided in the same way for all batch
// sizes and capacities. In contrast, decode_cuda (lazy/attention_cuda.h) chooses the fastest division. The first kernel
// uses programmatic dependent launch, so another kernel must precede the call in the stream.
#pragma once
#include "lazy/attention_cuda.h"

namespace lazy::kernels {

size_t decode_step_workspace_cuda(const Problem& problem, const CacheSize& cache);
void decode_step_cuda(const Problem& problem, const Decode<float>& arguments, const CacheSize& cache,
                      const CudaCall& call);

}  // namespace lazy::kernels
