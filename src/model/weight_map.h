// Reads the index file of sharded weights, model.safetensors.index.json or pytorch_model.bin.index.json.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lazy {

// Reads an index and returns a map from file names to the names of the tensors in each file. Throws an Error for
// `operation` if `path` is not a valid index or refers to files outside its own folder.
std::map<std::string, std::vector<std::string>> read_weight_map(const std::filesystem::path& path,
                                                                const char* operation);

}  // namespace lazy
