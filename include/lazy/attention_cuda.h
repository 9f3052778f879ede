// Attention and decoding on NVIDIA GPUs. All pointers in the structs of attention.h and decode.h are device pointers
// here, including cu_seqlens, lengths, block_table and visible_counts.
//
// All work is queued on the caller's stream. The functions do not allocate memory and do not wait for the GPU, so calls
// can be captured in a CUDA graph.
#pragma once
#include <cstddef>

#include "lazy/attention.h"
#include "lazy/decode.h"
#include "lazy/kernel_table.h"

namespace lazy::kernels {

struct CudaCall {
  void* stream = nullptr;  // a cudaStream_t; null: the default stream
  // aligned to 256 bytes; backward_workspace_cuda and decode_workspace_cuda return the required size
  void* workspace = nullptr;
  bool deterministic = false;  // the backward is then bit-identical from run to run and does not use alive_sum
  CudaKernel kernel = CudaKernel::automatic;
};

// Returns the properties of the current device on which the support checks depend.
DeviceFacts device_facts();

// These functions call the functions with the same names in kernel_table.h for the current device.
std::string unmet_condition_cuda(const Problem& problem, CudaKernel kernel);
CudaKernel choose_cuda(const Problem& problem);

// Returns whether the forward writes Forward::alive_sum if the pointer is given. If it does, the backward obtains the
// sums that it needs for each row as the dot products d_out . out and d_out . alive_sum, without another sweep over the
// keys. `out` and alive_sum are rounded to 16 bits, and the gradients then contain this rounding error.
bool writes_alive_sum_cuda(const Problem& problem, const CudaCall& call);

// Returns whether the backward supports Backward::cos and Backward::sin.
bool rotates_back_cuda(const Problem& problem, const CudaCall& call);

// Returns whether the backward computes the sums that it needs for each row from `out` and lse, without a sweep over
// the keys. If it does, the normalizer is softmax_sink, and d_sink is not requested, then the keys given to the
// backward may be a subset of the keys from which `out` and lse were computed.
bool reads_rows_from_out_cuda(const Problem& problem, const Backward<float>& arguments, const CudaCall& call);

// Returns the size of the workspace of the backward in bytes. It is linear in the sequence lengths.
size_t backward_workspace_cuda(const Problem& problem, const CudaCall& call);

// forward_cuda and backward_cuda throw std::invalid_argument with the text of unmet_condition_cuda if the kernel does
// not support the problem, and std::runtime_error if CUDA rejects a launch.
void forward_cuda(const Problem& problem, const Forward<float>& arguments, const CudaCall& call);
void backward_cuda(const Problem& problem, const Backward<float>& arguments, const CudaCall& call);

// Returns the size of the workspace of decode_cuda in bytes. Most of the workspace stores the scores: one float per key
// and query row, for the few sequences that are processed at the same time.
size_t decode_workspace_cuda(const Problem& problem, const CacheSize& cache);

// Computes decode attention. Results are bit-identical from run to run and on every GPU of one architecture. The device
// checks lengths and pages: a sequence whose length is below 0 or above cache.keys, or whose visible_count is below
// q_length, gets NaN results. Rows that see a key on a page outside [0, cache.pages) also get NaN. The kernels never
// read outside the caches. Throws std::invalid_argument with the text of unmet_condition_decode_cuda if the kernel does
// not support the problem, and std::runtime_error if CUDA rejects a launch.
void decode_cuda(const Problem& problem, const Decode<float>& arguments, const CacheSize& cache, const CudaCall& call);

}  // namespace lazy::kernels
