// Selects the device, the compute dtype and the number of CPU threads, and queries properties of the GPU. This header
// does not include ATen.
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

// Resolves "auto" to "cuda" if PyTorch finds a GPU that this build has kernels for, otherwise to "cpu". Loads the CUDA
// libraries. Throws an Error with the reason if "cuda" is requested but not available; `setting` is the option or key
// that specified the device.
std::string resolve_device(const std::string& device, const char* setting = "--device");
int64_t device_count(const std::string& device);  // 1 for "cpu"

// Resolves "auto" to bf16 on GPUs and on CPUs with AMX, and to fp32 on other CPUs, where fp32 is faster.
std::string resolve_dtype(const std::string& dtype, const std::string& device);

// Moves a model to `device` ("cpu", "cuda" for the first GPU, or "cuda:N") and sets its compute dtype ("fp32" or
// "bf16").
void set_placement(LanguageModel& model, const std::string& device, const std::string& dtype);
// Calls LanguageModel::load_offloaded with the device and dtype given by name.
LanguageModel load_offloaded_model(const std::filesystem::path& directory, const std::string& device,
                                   const std::string& dtype);
// Name of the device that a model is on, such as "cpu" or "cuda:0".
std::string device_name(const LanguageModel& model);

struct Gpu {
  std::string name;
  int64_t memory = 0;        // bytes
  int major = 0, minor = 0;  // compute capability
};
// The GPUs visible to this process, queried from the driver without loading CUDA's libraries; empty without a driver.
std::vector<Gpu> gpus();

// The driver's name of the current CUDA device; empty on a CPU or if the name is unknown.
std::string gpu_name(const std::string& device);

// Throws an Error that states the device found, unless the device is a GPU that supports fp8 matrix products.
void require_fp8(const std::string& device);

// Peak dense bf16 tensor-core throughput in TFLOP/s; 0 if unknown.
double peak_bf16_tflops(const std::string& device);
double peak_bf16_tflops_of(const std::string& gpu_name);

}  // namespace lazy
