// Reading pytorch_model.bin as memory-mapped tensors, without executing Python.
#pragma once
#include <filesystem>
#include <memory>

#include <filesystem>
#include <map>

#include "model/weights_file.h"

namespace lazy {

// Opens and validates one file, or the files listed in a `*.bin.index.json`. Error names file and tensor.
std::unique_ptr<WeightsFile> open_torch_file(const std::filesystem::path& path);

}  // namespace lazy
