#include "build_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "commit.h"
#include "core/text.h"
#include "model/device.h"
#include "model/torch_build.h"
#include "ops/kernel_support.h"
#include "ops/load_cuda.h"

namespace lazy::cli {
namespace {

using Json = nlohmann::ordered_json;

kernels::Problem usual_problem(kernels::Normalizer normalizer, kernels::DType dtype, int64_t head_dim) {
  return {.q_length = 128,
          .k_length = 128,
          .head_dim = head_dim,
          .value_dim = head_dim,
          .dtype = dtype,
          .normalizer = normalizer};
}

// Returns {normalizer: [types]} with the data types that the CPU kernels support.
Json cpu_support() {
  Json served = Json::object();
  for (const kernels::Normalizer normalizer : kernels::kAllNormalizers) {
    Json types = Json::array();
    for (const kernels::DType type : kernels::kKernelTypes) {
      if (kernels::unmet_condition(usual_problem(normalizer, type, 64)).empty()) types.push_back(kernels::name(type));
    }
    served[kernels::name(normalizer)] = types;
  }
  return served;
}

// Returns {normalizer: {type: {head size: kernel}}} for this GPU, or the reason why CUDA is unavailable.
Json cuda_support() {
  try {
    ops::load_cuda();
  } catch (const std::exception& error) {
    return error.what();
  }
  Json served = Json::object();
  for (const kernels::Normalizer normalizer : kernels::kAllNormalizers) {
    for (const kernels::DType type : kernels::kKernelTypes) {
      for (const int64_t size : kernels::kTensorCoreHeadSizes) {
        served[kernels::name(normalizer)][kernels::name(type)][std::to_string(size)] =
            ops::cuda_attention_kernel(usual_problem(normalizer, type, size));
      }
    }
  }
  return served;
}

// Formats head sizes by kernel, such as "hopper 64, 128; portable 96, 256", or just "plain" if one kernel supports all
// head sizes.
std::string by_kernel(const Json& sizes) {
  std::map<std::string, std::vector<std::string>> groups;
  for (const auto& [size, kernel] : sizes.items()) groups[kernel.get<std::string>()].push_back(size);
  if (groups.size() == 1) return groups.begin()->first;
  std::vector<std::string> parts;
  for (const auto& [kernel, list] : groups) parts.push_back(fmt::format("{} {}", kernel, fmt::join(list, ", ")));
  return fmt::format("{}", fmt::join(parts, "; "));
}

// Returns the version of the NVIDIA driver, such as "570.124.06", or "" without a driver.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  // the first line of the file: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  ..."
  while (file >> word) {
    if (word.size() >= 3 && word.find_first_not_of("0123456789.") == std::string::npos && word.find('.') != word.npos)
      return word;
  }
  return {};
}

}  // namespace

std::string version_line() {
  const std::string commit = *kCommit ? fmt::format("commit {}, ", kCommit) : "";
  return fmt::format("lazy {} ({}LibTorch {})", LAZY_VERSION, commit, torch_version());
}

Json build_info() {
  // The devices and the runtime version, which are read below, are known only after cuda_support() has initialized
  // CUDA.
  Json cuda = cuda_support(), out;
  out["version"] = LAZY_VERSION;
  out["commit"] = kCommit;
  out["compiler"] = __VERSION__;
  out["torch"] = torch_version();
  out["devices"] = {"cpu"};
  const TorchFacts torch = torch_facts();
  for (int64_t i = 0; i < torch.cuda_devices; ++i) out["devices"].push_back(fmt::format("cuda:{}", i));
  out["cuda"] = {{"runtime", torch.cuda_runtime}, {"driver", driver_version()}};
  out["gpus"] = Json::array();
  for (const Gpu& gpu : gpus()) {
    out["gpus"].push_back({{"name", gpu.name},
                           {"memory_bytes", gpu.memory},
                           {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)}});
  }
  out["threads"] = thread_count();
  out["cpu_vectors"] = torch.cpu_vectors;
  out["cpu_features"] = torch.cpu_features;
  out["blas"] = torch.blas;
  out["attention_kernels"] = {{"cpu", cpu_support()}, {"cuda", std::move(cuda)}};
  return out;
}

std::string build_text(const Json& info) {
  const auto text = [&](const char* key) { return info[key].get<std::string>(); };
  std::string out = fmt::format("{}\ncompiler      {}\n", version_line(), text("compiler"));
  const auto add = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    out += fmt::format(format, std::forward<Args>(args)...);
  };
  const std::string runtime = info["cuda"]["runtime"], driver = info["cuda"]["driver"];
  add("cuda          {}, driver {}\n", runtime.empty() ? "not loaded" : runtime, driver.empty() ? "none" : driver);
  add("devices       {}\n", fmt::join(info["devices"].get<std::vector<std::string>>(), ", "));
  for (const Json& gpu : info["gpus"]) {
    add("gpu           {}, {}, compute capability {}\n", gpu["name"].get<std::string>(),
        human_bytes(gpu["memory_bytes"].get<double>()), gpu["compute_capability"].get<std::string>());
  }
  add("threads       {}\n", info["threads"].get<int>());
  add("cpu features  {} ({})\n", fmt::join(info["cpu_features"].get<std::vector<std::string>>(), " "),
      text("cpu_vectors"));
  add("blas          {}\n", text("blas"));
  add("attention kernels\n");
  for (const auto& [device, served] : info["attention_kernels"].items()) {
    if (served.is_string()) {
      add("  {:5} {}\n", device, served.get<std::string>());
      continue;
    }
    for (const auto& [normalizer, types] : served.items()) {
      if (types.is_array()) {
        add("  {:5} {:13} {}\n", device, normalizer, fmt::join(types.get<std::vector<std::string>>(), ", "));
        continue;
      }
      for (const auto& [type, sizes] : types.items())
        add("  {:5} {:13} {:9} {}\n", device, normalizer, type, by_kernel(sizes));
    }
  }
  return out;
}

}  // namespace lazy::cli
