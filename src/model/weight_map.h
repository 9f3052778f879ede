// The index of sharded weights: model.safetensors.index.json, pytorch_model.bin.index.json.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lazy {

// Reads an index: file name -> names of its tensors. Error naming `operation` if `path` is not a valid index or refers
// outside its own folder.
std::map<std::string, std::vector<std::string>> read_weight_map(const std::filesystem::path& path,
                                                                const char* operation);

}  // namespace lazy
