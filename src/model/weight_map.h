// The index of weights in several files: model.safetensors.index.json, pytorch_model.bin.index.json.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lazy {

// File name -> names of the tensors that it should hold. Error naming `operation` when `path` is no such index, or
// leads out of its own folder.
std::map<std::string, std::vector<std::string>> read_weight_map(const std::filesystem::path& path,
                                                                const char* operation);

}  // namespace lazy
