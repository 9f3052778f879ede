// Runs attention and decode cases on the GPU: copies in, poisons outputs and workspace with NaN, copies back.
#pragma once
#include <string>

#include "../case.h"
#include "lazy/attention_cuda.h"

namespace lazy::kernels::test {

struct CudaRun {
  CudaKernel kernel = CudaKernel::automatic;
  bool deterministic = false;
  bool alive_sum = false;          // forward and backward share it where the kernel writes it
  bool score_stats = true;         // are asked for
  bool backward = true;            // runs too
  bool stats_apart = false;        // the backward gets its inputs from another forward, without statistics
  const Results* whole = nullptr;  // of whose softmax the keys are a part: std::logic_error where the kernel cannot
};

bool has_gpu();
std::string why_no_gpu();  // "no NVIDIA GPU", or that this build has no CUDA kernels
// What run_cuda(shape, inputs) uses.
CudaRun& current_run();
Results run_cuda(const Shape& shape, const Inputs& inputs);

// Bytes behind the pointers of the caches and the output; everything else follows from the Problem.
struct DecodeBytes {
  size_t q = 0, k = 0, v = 0, out = 0;
};

void run_decode_cuda(const Problem& problem, const Decode<float>& arguments, const CacheSize& cache,
                     const DecodeBytes& bytes, CudaKernel kernel = CudaKernel::automatic);

}  // namespace lazy::kernels::test
