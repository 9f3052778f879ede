// What this build and this machine are, for `lazy info`, `lazy doctor` and `lazy --version`.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lazy::cli {

std::string version_line();  // "lazy 0.1.0 (commit 1a2b3c4d5e6f, LibTorch 2.11.0)"

// Versions, devices, threads, instruction sets, and which kernels serve attention. Loads CUDA's libraries where there
// is a GPU.
nlohmann::ordered_json build_info();
std::string build_text(const nlohmann::ordered_json& info);

}  // namespace lazy::cli
