// pytorch_model.bin as tensors: memory-mapped, without running a line of Python.
#pragma once
#include <filesystem>
#include <memory>

#include "model/weights_file.h"

namespace lazy {

// One file, or the files that a `*.bin.index.json` lists, opened and checked. Error names file and tensor.
std::unique_ptr<WeightsFile> open_torch_file(const std::filesystem::path& path);

}  // namespace lazy
