// Selection of the device and the compute dtype, and properties of the GPU.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lazy {

// Resolves "auto" to "cuda" if PyTorch finds a GPU that this build has kernels for, else to "cpu". Loads the CUDA
// libraries. Error with the reason if "cuda" is not available.
std::string resolve_device(const std::string& device);
int64_t device_count(const std::string& device);  // 1 for "cpu"

// Resolves "auto" to bf16 on a GPU and on CPUs with AMX, else to fp32, which is faster there.
std::string resolve_dtype(const std::string& dtype, const std::string& device);

struct Gpu {
  std::string name;
  int64_t memory = 0;        // bytes
  int major = 0, minor = 0;  // compute capability
};
// The GPUs that the driver shows to this process, asked without CUDA's libraries; none without a driver.
std::vector<Gpu> gpus();

// The driver's name of the current CUDA device; empty on a CPU or if the name is unknown.
std::string gpu_name(const std::string& device);

// Error that says what was found unless the device is a GPU with 8-bit floating-point products.
void require_fp8(const std::string& device);

// Peak dense bf16 tensor-core throughput in TFLOP/s; 0 if unknown.
double peak_bf16_tflops(const std::string& device);
double peak_bf16_tflops_of(const std::string& gpu_name);

}  // namespace lazy
