// Information about this build and this machine, for `lazy info`, `lazy doctor` and `lazy --version`.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lazy::cli {

std::string version_line();  // for example "lazy 0.1.0 (commit 1a2b3c4d5e6f, LibTorch 2.11.0)"

// Returns versions, devices, threads, instruction sets, and the kernels that compute attention. Loads CUDA's libraries
// if the machine has a GPU.
nlohmann::ordered_json build_info();
std::string build_text(const nlohmann::ordered_json& info);

}  // namespace lazy::cli
