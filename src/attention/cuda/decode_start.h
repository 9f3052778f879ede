// Launches a kernel that begins with wait_for_launcher().
#pragma once
#include "attention/cuda/decode_params.h"

namespace lazy::kernels::cuda::decoding {

constexpr int kSharedMost = 96 << 10;  // of a block; every GPU from sm_80 on has as much
constexpr int kSharedPercent = 57;     // 132 KiB on sm_90; loads in flight need the rest

// behind: an own kernel, which lets this one start before it ends where the machine code can wait for it (sm_90).
template <auto kernel>
void start(const Params& p, dim3 grid, int threads, int shared_bytes, bool behind, cudaStream_t stream) {
  static const bool can_wait = [] {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMost), "to prepare decode");
    // The same division of the memory for all, so that kernels can share a multiprocessor where one ends.
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSharedPercent),
          "to prepare decode");
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, kernel), "to describe decode");
    return attributes.ptxVersion >= 90;
  }();
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "to name the device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "to name the device");
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = behind && can_wait && major >= 9 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, p), "decode");
}

}  // namespace lazy::kernels::cuda::decoding
