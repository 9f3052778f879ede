#include <cuda_runtime_api.h>

#include <stdexcept>

#include "../device.h"

namespace lazy::kernels::test {

namespace {

void ok(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

}  // namespace

DeviceMemory::DeviceMemory(size_t bytes) : bytes_(bytes) {
  ok(cudaMalloc(&data_, bytes + 256));
  ok(cudaMemset(data_, 0xFF, bytes + 256));
}
DeviceMemory::DeviceMemory(const void* from, size_t bytes) : DeviceMemory(bytes) { write(from, bytes); }
DeviceMemory::~DeviceMemory() { cudaFree(data_); }
void DeviceMemory::write(const void* from, size_t bytes) const {
  ok(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice));
}
void DeviceMemory::read(void* to) const { ok(cudaMemcpy(to, data_, bytes_, cudaMemcpyDeviceToHost)); }
void synchronize_device() { ok(cudaDeviceSynchronize()); }

}  // namespace lazy::kernels::test
