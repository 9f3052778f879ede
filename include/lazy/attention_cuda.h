// Attention and decoding on NVIDIA GPUs: the same Problem and argument structs as attention.h and decode.h, with device
// pointers, those of Problem (cu_seqlens), lengths, block_table and visible_counts included.
//
// Everything is queued on the caller's stream. Nothing is allocated and nothing waits for the GPU, so calls can be
// captured in a CUDA graph.
#pragma once
#include <cstddef>

#include "lazy/attention.h"
#include "lazy/decode.h"
#include "lazy/kernel_table.h"

namespace lazy::kernels {

struct CudaCall {
  void* stream = nullptr;      // a cudaStream_t; null: the default stream
  void* workspace = nullptr;   // as many bytes as the query below says, aligned to 256 bytes
  bool deterministic = false;  // backward: bit-identical from run to run, without alive_sum
  CudaKernel kernel = CudaKernel::automatic;
};

// The current device.
DeviceFacts device_facts();

// kernel_table.h's checks for the current device.
std::string unmet_condition_cuda(const Problem& problem, CudaKernel kernel);
CudaKernel choose_cuda(const Problem& problem);

// Whether the forward writes Forward::alive_sum if it is given. The backward then takes a row's sums from d_out . out
// and d_out . alive_sum instead of sweeping over its keys once more: gradients carry the rounding of both to 16 bits.
bool writes_alive_sum_cuda(const Problem& problem, const CudaCall& call);

// Whether the backward takes Backward::cos and sin.
bool rotates_back_cuda(const Problem& problem, const CudaCall& call);

// Whether the backward takes what a row's weights have in common from out and lse, and not from the keys: with
// softmax_sink and without d_sink, the keys may then be a part of those that out and lse are of.
bool reads_rows_from_out_cuda(const Problem& problem, const Backward<float>& arguments, const CudaCall& call);

// Bytes of workspace. Linear in the lengths.
size_t backward_workspace_cuda(const Problem& problem, const CudaCall& call);

// Throw std::invalid_argument with unmet_condition_cuda's text, std::runtime_error when CUDA refuses a launch.
void forward_cuda(const Problem& problem, const Forward<float>& arguments, const CudaCall& call);
void backward_cuda(const Problem& problem, const Backward<float>& arguments, const CudaCall& call);

// Bytes of workspace: one float per key and row of a few sequences at a time, and little else.
size_t decode_workspace_cuda(const Problem& problem, const CacheSize& cache);

// Bit-identical from run to run and on every GPU of one architecture. Lengths and pages are checked on the device: a
// sequence whose length is below 0 or above cache.keys, or whose visible_count is below q_length, gets NaN results, and
// so do rows that see a key on a page outside [0, cache.pages). Nothing outside the caches is read.
//
// Throws std::invalid_argument with unmet_condition_decode_cuda's text, std::runtime_error when CUDA refuses a launch.
void decode_cuda(const Problem& problem, const Decode<float>& arguments, const CacheSize& cache, const CudaCall& call);

}  // namespace lazy::kernels
