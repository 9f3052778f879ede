// Selection of the device, the compute dtype and the number of CPU threads, and properties of the GPU. Needs no ATen
// header.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lazy {

class LanguageModel;

// The number of CPU threads that LibTorch's operators use.
int thread_count();
void set_thread_count(int threads);

// Resolves "auto" to "cuda" if PyTorch finds a GPU that this build has kernels for, else to "cpu". Loads the CUDA
// libraries. Error with the reason if "cuda" is not available; `setting` is the option or key that named the device.
std::string resolve_device(const std::string& device, const char* setting = "--device");
int64_t device_count(const std::string& device);  // 1 for "cpu"

// Resolves "auto" to bf16 on a GPU and on CPUs with AMX, else to fp32, which is faster there.
std::string resolve_dtype(const std::string& dtype, const std::string& device);

// Moves a model to `device` ("cpu", "cuda" for the first GPU, or "cuda:N") and sets its compute dtype ("fp32" or
// "bf16").
void set_placement(LanguageModel& model, const std::string& device, const std::string& dtype);
// LanguageModel::load_offloaded with the same names.
LanguageModel load_offloaded_model(const std::filesystem::path& directory, const std::string& device,
                                   const std::string& dtype);
// The device of a model: "cpu", "cuda:0".
std::string device_name(const LanguageModel& model);

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
