// What a configuration asks the machine: is there a GPU, which precision is fast, how fast is it at most.
#pragma once
#include <cstdint>
#include <string>

namespace lazy {

// "auto" becomes "cuda" where PyTorch finds a GPU and this build has kernels for it, else "cpu". Loads CUDA's
// libraries. Error when "cuda" cannot be had, which says why.
std::string resolve_device(const std::string& device);
int64_t device_count(const std::string& device);  // 1 for "cpu"

// "auto" becomes bf16 on a GPU and where the CPU multiplies it in hardware tiles (AMX): elsewhere fp32 products are
// faster.
std::string resolve_dtype(const std::string& dtype, const std::string& device);

// The driver's name for the GPU that "cuda" means; empty on a CPU and when the driver does not say.
std::string gpu_name(const std::string& device);

// 10^12 operations a second of the tensor cores in bf16, without sparsity; 0 where it is not known.
double peak_bf16_tflops(const std::string& device);
double peak_bf16_tflops_of(const std::string& gpu_name);

}  // namespace lazy
