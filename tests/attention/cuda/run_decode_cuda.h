// Runs decode on the GPU: takes arguments that point to the host's memory, copies in, runs, copies back.
#pragma once
#include "lazy/attention_cuda.h"

namespace lazy::kernels::test {

// Bytes behind the pointers of the caches and the output; everything else follows from the Problem.
struct DecodeBytes {
  size_t q = 0, k = 0, v = 0, out = 0;
};

void run_decode_cuda(const Problem& problem, const Decode<float>& arguments, const CacheSize& cache,
                     const DecodeBytes& bytes, CudaKernel kernel = CudaKernel::automatic);

}  // namespace lazy::kernels::test
