#include "model/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/Utils.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

#include "core/error.h"
#include "model/language_model.h"
#include "ops/load_cuda.h"

namespace lazy {

int thread_count() { return at::get_num_threads(); }
void set_thread_count(int threads) { at::set_num_threads(threads); }

std::vector<Gpu> gpus() {
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of the driver
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return {};
  const auto initialize = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto name = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  const auto memory = reinterpret_cast<int (*)(size_t*, int)>(dlsym(driver, "cuDeviceTotalMem_v2"));
  const auto attribute = reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  int devices = 0;
  if (!initialize || !count || !get || !name || !memory || !attribute || initialize(0) != 0 || count(&devices) != 0)
    return {};
  std::vector<Gpu> out;
  for (int n = 0, device = 0; n < devices && get(&device, n) == 0; ++n) {
    std::array<char, 256> text{};
    size_t bytes = 0;
    Gpu& gpu = out.emplace_back();
    if (name(text.data(), static_cast<int>(text.size()) - 1, device) == 0) gpu.name = text.data();
    if (memory(&bytes, device) == 0) gpu.memory = static_cast<int64_t>(bytes);
    if (attribute(&gpu.major, kMajor, device) == 0) attribute(&gpu.minor, kMinor, device);
  }
  return out;
}

namespace {

Gpu first_gpu() {
  const std::vector<Gpu> all = gpus();
  return all.empty() ? Gpu{} : all.front();
}

at::Device parse_device(const std::string& device) {
  return device == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(device);
}

at::ScalarType parse_compute_dtype(const std::string& dtype) { return dtype == "bf16" ? at::kBFloat16 : at::kFloat; }

}  // namespace

void set_placement(LanguageModel& model, const std::string& device, const std::string& dtype) {
  model.set_compute_dtype(parse_compute_dtype(dtype));
  model.to(parse_device(device));
}

LanguageModel load_offloaded_model(const std::filesystem::path& directory, const std::string& device,
                                   const std::string& dtype) {
  return LanguageModel::load_offloaded(directory, parse_device(device), parse_compute_dtype(dtype));
}

std::string device_name(const LanguageModel& model) { return model.device().str(); }

std::string gpu_name(const std::string& device) { return device == "cuda" ? first_gpu().name : std::string(); }

void require_fp8(const std::string& device) {
  const Gpu gpu = device == "cuda" ? first_gpu() : Gpu{};
  if (10 * gpu.major + gpu.minor >= 89) return;
  fail("config", "training.precision: \"fp8\" requires an NVIDIA GPU of compute capability 8.9 or later, found {}",
       device == "cuda" ? fmt::format("{} of {}.{}", gpu.name, gpu.major, gpu.minor) : "a CPU");
}

std::string resolve_device(const std::string& device, const char* setting) {
  if (device == "cpu") return device;
  try {
    ops::load_cuda();
    return "cuda";
  } catch (const std::exception& error) {
    if (device == "auto") return "cpu";
    fail("device", "{} cuda: {}", setting, error.what());
  }
}

std::string resolve_dtype(const std::string& dtype, const std::string& device) {
  if (dtype != "auto") return dtype;
  if (device == "cuda") return "bf16";
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto amx = capabilities.find("amx_bf16");
  return amx != capabilities.end() && amx->second.isBool() && amx->second.toBool() ? "bf16" : "fp32";
}

double peak_bf16_tflops(const std::string& device) { return peak_bf16_tflops_of(gpu_name(device)); }

double peak_bf16_tflops_of(const std::string& name) {
  // Dense bf16 throughput from the vendors' data sheets. The first entry that is contained in the GPU's name is used.
  for (const auto& [part, tflops] : std::initializer_list<std::pair<const char*, double>>{{"H100 PCIe", 756},
                                                                                          {"H100 NVL", 835},
                                                                                          {"H100", 989},
                                                                                          {"H200", 989},
                                                                                          {"GH200", 989},
                                                                                          {"B200", 2250},
                                                                                          {"A100", 312},
                                                                                          {"L40S", 362},
                                                                                          {"RTX 4090", 165}}) {
    if (name.find(part) != std::string::npos) return tflops;
  }
  return 0;
}

int64_t device_count(const std::string& device) {
  return device == "cuda" ? at::detail::getCUDAHooks().deviceCount() : 1;
}

}  // namespace lazy
