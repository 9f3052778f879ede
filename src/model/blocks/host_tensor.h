// Creates tensors from host vectors.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace lazy {

// Returns a tensor of shape (values.size()) in host memory. If `device` is a GPU, the memory is pinned, so that a copy
// to the device is asynchronous.
template <typename T>
at::Tensor on_host(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  at::Tensor host =
      at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(type).pinned_memory(device.is_cuda()));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<T>());
  return host;
}

// Returns an int64 tensor of shape (values.size()) on `device`. The copy does not block the host.
inline at::Tensor on_device(const std::vector<int64_t>& values, at::Device device) {
  const at::Tensor host = on_host(values, at::kLong, device);
  return device.is_cuda() ? host.to(device, /*non_blocking=*/true) : host;
}

}  // namespace lazy
