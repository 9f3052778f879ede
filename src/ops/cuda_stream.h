// The current stream of PyTorch, and a guard that selects the device of a tensor.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/tensor.h"
#ifdef LAZY_STABLE_ABI
#include <torch/csrc/stable/accelerator.h>
// The headers of LibTorch declare this function only in builds of LibTorch with CUDA.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
#else
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace lazy::ops {

// Makes the device of a tensor the current device during the lifetime of the guard. In the stable ABI, the class of the
// member `guard` has hidden visibility, so this class must have it too.
struct __attribute__((visibility("hidden"))) DeviceGuard {
#ifdef LAZY_STABLE_ABI
  torch::stable::accelerator::DeviceGuard guard;
  explicit DeviceGuard(const at::Tensor& t) : guard(t.get_device()) {}
#else
  c10::cuda::CUDAGuard guard;
  explicit DeviceGuard(const at::Tensor& t) : guard(t.device()) {}
#endif
};

// Returns PyTorch's current stream on the current device.
inline cudaStream_t current_stream() {
#ifdef LAZY_STABLE_ABI
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_get_current_cuda_stream(torch::stable::accelerator::getCurrentDeviceIndex(), &stream));
  return static_cast<cudaStream_t>(stream);
#else
  return c10::cuda::getCurrentCUDAStream().stream();
#endif
}

}  // namespace lazy::ops
