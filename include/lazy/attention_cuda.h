// The attention kernels on NVIDIA GPUs: the same Problem and argument structs as attention.h, with device pointers.
//
// Everything is queued on the caller's stream; nothing is allocated and nothing waits. Pointers of Problem (cu_seqlens)
// are device pointers too, so packed documents need no copy back to the host.
#pragma once
#include <cstddef>

#include "lazy/attention.h"

namespace lazy::kernels {

// plain: every problem, fp32 arithmetic. portable: tensor cores by mma.sync, sm_80 and later. hopper: sm_90 only.
enum class CudaKernel { automatic, plain, portable, hopper };

const char* name(CudaKernel kernel);

struct CudaCall {
  void* stream = nullptr;      // a cudaStream_t; null: the default stream
  void* workspace = nullptr;   // as many bytes as the query below says, aligned to 256 bytes
  bool deterministic = false;  // backward: bit-identical from run to run
  CudaKernel kernel = CudaKernel::automatic;
};

// Why this kernel cannot serve the problem on the current device, as one line; empty when it can. `automatic` asks
// whether any can.
std::string unmet_condition_cuda(const Problem& problem, CudaKernel kernel);

// The fastest kernel that serves it.
CudaKernel choose_cuda(const Problem& problem);

// Bytes of workspace. Linear in the lengths.
size_t backward_workspace_cuda(const Problem& problem, const CudaCall& call);

// Throw std::invalid_argument with unmet_condition_cuda's text, std::runtime_error when CUDA refuses a launch.
void forward_cuda(const Problem& problem, const Forward<float>& arguments, const CudaCall& call);
void backward_cuda(const Problem& problem, const Backward<float>& arguments, const CudaCall& call);

}  // namespace lazy::kernels
