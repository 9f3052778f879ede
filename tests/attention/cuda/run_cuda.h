// Runs attention and decode cases on the GPU: copies the inputs to the GPU, fills outputs and workspace with NaN, runs
// the kernels, and copies the results back.
#pragma once
#include <string>

#include "../case.h"
#include "lazy/attention_cuda.h"

namespace lazy::kernels::test {

struct CudaRun {
  CudaKernel kernel = CudaKernel::automatic;
  bool deterministic = false;
  // If true, the forward also writes alive_sum (include/lazy/attention.h) for the backward, if the kernel supports
  // this.
  bool alive_sum = false;
  bool score_stats = true;  // the forward writes score_stats (see lazy/attention.h)
  bool backward = true;     // also run the backward pass
  // If true, the backward receives the results of a separate forward that is called without statistics.
  bool stats_apart = false;
  // If not null, this case contains only a part of the keys of a softmax, and `whole` contains the results over all
  // keys. The backward then uses out and lse from `whole`. Throws std::logic_error if the kernel does not support this.
  const Results* whole = nullptr;
};

bool has_gpu();
std::string why_no_gpu();  // returns why the tests cannot run on a GPU, or an empty string if they can
// Returns the options that run_cuda(shape, inputs) uses. A test may change them.
CudaRun& current_run();
Results run_cuda(const Shape& shape, const Inputs& inputs);

// Sizes in bytes of q, of the caches and of the output. The sizes of the other tensors follow from the Problem.
struct DecodeBytes {
  size_t q = 0, k = 0, v = 0, out = 0;
};

void run_decode_cuda(const Problem& problem, const Decode<float>& arguments, const CacheSize& cache,
                     const DecodeBytes& bytes, CudaKernel kernel = CudaKernel::automatic);

}  // namespace lazy::kernels::test
