// Decoding on NVIDIA GPUs: the same Problem and arguments as decode.h, with device pointers throughout: lengths,
// block_table and visible_counts too. Everything is queued on the caller's stream; nothing is allocated and nothing
// waits for the GPU, so that a CUDA graph may hold it. Bit-identical from run to run and on every GPU of one
// architecture.
#pragma once
#include "lazy/attention_cuda.h"
#include "lazy/decode.h"

namespace lazy::kernels {

// How much a cache can hold. What the lengths and pages on the device say is checked against it there: a sequence whose
// length is below 0 or above `keys`, or whose visible_count is below q_length, gets NaN results, and so do the rows
// that see a key on a page outside [0, pages). Nothing outside the caches is read.
struct CacheSize {
  int64_t keys = 0;   // of a sequence at most: the capacity, or table_width * page_size
  int64_t pages = 0;  // paged: pages of k and v
};

// Why decode_cuda does not serve the problem, as one line; empty when it does. Of `kernel`, plain forces fp32
// arithmetic and portable the tensor cores; strides and head sizes decide otherwise.
std::string unmet_condition_decode_cuda(const Problem& problem, const CacheSize& cache, CudaKernel kernel);

// Bytes of workspace: a float a key and row of a few sequences at a time, and little else.
size_t decode_workspace_cuda(const Problem& problem, const CacheSize& cache);

// Throws std::invalid_argument with unmet_condition_decode_cuda's text, std::runtime_error when CUDA refuses a launch.
void decode_cuda(const Problem& problem, const Decode<float>& arguments, const CacheSize& cache, const CudaCall& call);

}  // namespace lazy::kernels
